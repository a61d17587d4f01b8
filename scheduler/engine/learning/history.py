"""What has ended so far, by kind of request, and the curves drawn from it for those that have not."""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import Floats, Ints
from scheduler.engine.learning.bins import BINS, bin_of
from scheduler.engine.learning.curves import Curve
from scheduler.engine.learning.estimates import EstimateErrors
from scheduler.engine.learning.hazards import hazards, probabilities

GROUPS = 4  # of GPU counts: 1, 2-4, 5-8, more
RENEW_S = 14_400
FIRST_RENEW_S = 2_400


def group_of(gpus: int) -> int:
    """Which group a GPU count belongs to."""
    return 0 if gpus <= 1 else 1 if gpus <= 4 else 2 if gpus <= 8 else 3


class History:
    """Ends by class (team and group of GPU counts), errors of estimates, and a table of curves.

    A *form* is a class with the bin of an estimate (none: 0). ``table`` has a row per form and a column per
    bin; rows are drawn when first asked for and stay until ``renew``. Not for several threads at once.
    """

    def __init__(self, teams: int, smoothing: float, curve: Curve) -> None:
        classes = teams * GROUPS
        self.smoothing = smoothing
        self.curve = curve
        self.team_of: Ints = np.repeat(np.arange(teams), GROUPS)
        self.ended = np.zeros((classes, BINS))
        self.errors = EstimateErrors()
        self.table: Floats = np.zeros((classes * (BINS + 1), BINS))
        self.drawn = np.zeros(len(self.table), np.bool_)
        self.due = 0
        self.began: int | None = None
        self.prior: Floats = np.zeros((classes, BINS))
        self._learn(np.zeros_like(self.ended))

    def form_of(self, team: int, gpus: int, estimate: float) -> int:
        """The row of the table for a request; estimates of at most one second say nothing."""
        kind = team * GROUPS + group_of(gpus)
        return kind * (BINS + 1) + (bin_of(estimate) + 1 if estimate > 1 else 0)

    def note_end(self, form: int, duration: float) -> None:
        """Remember that a request of this form ended after so many useful seconds."""
        kind, estimate = divmod(form, BINS + 1)
        at = bin_of(duration)
        self.ended[kind, at] += 1
        if estimate:
            self.errors.note(estimate - 1, at)

    def is_due(self, now: int) -> bool:
        """Whether the curves are old: four hours, forty minutes in the first four hours."""
        return self.began is None or now >= self.due

    def renew(self, now: int, forms: Ints, ages: Floats) -> None:
        """Learn from all ends so far and from the ages (useful seconds) of requests that have not ended."""
        unfinished = np.zeros_like(self.ended)
        for form, age in zip(forms, ages, strict=True):
            if age > 1:
                unfinished[form // (BINS + 1), bin_of(age)] += 1
        self._learn(unfinished)
        self.began = now if self.began is None else self.began
        self.due = now + (RENEW_S if now - self.began > RENEW_S else FIRST_RENEW_S)

    def draw(self, form: int) -> None:
        """Make sure that the table holds the curve of this form."""
        if self.drawn[form]:
            return
        kind, estimate = divmod(form, BINS + 1)
        p = self.prior[kind]
        if estimate:
            p = p * self.errors.likelihood(estimate - 1)
        self.table[form] = self.curve(p)
        self.drawn[form] = True

    def _learn(self, unfinished: Floats) -> None:
        """At risk in a bin: who ended in it or later, and who is older than it without having ended."""
        ended_later = np.cumsum(self.ended[:, ::-1], axis=1)[:, ::-1]
        older = np.cumsum(unfinished[:, ::-1], axis=1)[:, ::-1] - unfinished
        self.prior = probabilities(hazards(self.ended, ended_later + older, self.team_of, self.smoothing))
        self.drawn[:] = False
