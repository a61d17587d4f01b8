"""How long requests run, by team and size: what ended and what has not, as a turn reads it (``Learned``)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scheduler.engine.columns import Flags, Floats, Ints
from scheduler.engine.learning.bins import BINS, bin_of, bins_of
from scheduler.engine.learning.curves import gittins, mean_remaining
from scheduler.engine.learning.estimates import EstimateErrors
from scheduler.engine.learning.hazards import hazards, probabilities
from scheduler.engine.model import Learned

GROUPS = 4  # of GPU counts: 1, 2-4, 5-8, more
EVERYBODY, ANY_SIZE = 0, -1
SMOOTHING = 50.0  # so many imagined requests of the wider group stand beside those of a narrow one
# When lengths are learned anew: with so many ended requests, and so many more since the last time.
LEAST, NEW, EVERY_S = 200, 50, 3_600

Class = tuple[int, int]


def group_of(units: int) -> int:
    """Which group of sizes a number of units belongs to."""
    return 0 if units <= 1 else 1 if units <= 4 else 2 if units <= 8 else 3


class LengthRecord:
    """Ends by team and group of sizes, and how far predictions were off. Not for several threads at once."""

    def __init__(self) -> None:
        self._ended: dict[Class, Floats] = {}
        self._errors = EstimateErrors()

    def note(self, team: int, units: int, ran_s: float, predicted_s: float = 0.0) -> None:
        """Remember that a request ended after so many seconds; a prediction of at most one second says nothing."""
        at = bin_of(ran_s)
        counts = self._ended.setdefault((team, group_of(units)), np.zeros(BINS))
        counts[at] += 1
        if predicted_s > 1:
            self._errors.note(bin_of(predicted_s), at)

    def learned(self, version: int, unfinished: Iterable[tuple[int, int, float]] = ()) -> Learned:
        """What is known now; ``unfinished`` are (team, units, seconds run) of those that have not ended.

        They count as longer than so far (Kaplan-Meier): without them lengths would be biased short.
        """
        running: dict[Class, Floats] = {}
        for team, units, ran_s in unfinished:
            if ran_s > 1:
                running.setdefault((team, group_of(units)), np.zeros(BINS))[bin_of(ran_s)] += 1
        classes = sorted(self._ended.keys() | running.keys())
        nothing = np.zeros(BINS)
        teams = sorted({team for team, _ in classes})
        # A class without an end beside the others of its team is what is known of any size of the team, and
        # one of a team without any what is known of everybody.
        rows = [*classes, *((team, ANY_SIZE) for team in teams), (EVERYBODY, ANY_SIZE)]
        place = {team: number for number, team in enumerate([*teams, EVERYBODY])}
        ended = np.array([self._ended.get(row, nothing) for row in rows])
        open_ = np.array([running.get(row, nothing) for row in rows])
        at_risk = (
            np.cumsum(ended[:, ::-1], axis=1)[:, ::-1] + np.cumsum(open_[:, ::-1], axis=1)[:, ::-1] - open_
        )
        team_of = np.array([place[team] for team, _ in rows], np.int64)
        chances = probabilities(hazards(ended, at_risk, team_of, SMOOTHING))
        lengths = tuple(
            (*row, tuple(round(float(one), 9) for one in chance))
            for row, chance in zip(rows, chances, strict=True)
        )
        return Learned(version, lengths, tuple(float(count) for count in self._errors.counts))


class Curves:
    """The curves drawn from what was learned: what is asked for is drawn once. Safe for several threads."""

    def __init__(self, learned: Learned) -> None:
        # Of everybody something is known also where nothing was learned.
        rows = (*LengthRecord().learned(0).lengths, *learned.lengths)
        self._chances = {(team, group): np.array(row) for team, group, row in rows}
        errors = EstimateErrors()
        if learned.errors:
            errors.counts = np.array(learned.errors)
        self._errors = errors
        self._forms: dict[tuple[int, int], int] = {}
        self._classes = list(self._chances)
        self._numbers = {form: number for number, form in enumerate(self._classes)}
        # By class and bin of the prediction (0: none): the curves, as far as they were drawn.
        self._gittins = np.zeros((len(self._classes), BINS + 1, BINS))
        self._means = np.zeros_like(self._gittins)
        self._is_drawn = np.zeros((len(self._classes), BINS + 1), np.bool_)

    def chance(self, team: int, units: int, predicted_s: float) -> Floats:
        """How likely the length is in each bin, not to scale: what was learned, and what is predicted."""
        return self._chance(self.form(team, units), bin_of(predicted_s) + 1 if predicted_s > 1 else 0)

    def form(self, team: int, units: int) -> int:
        """The number of the class of requests that says most about those of this team and size."""
        form = self._forms.get((team, units))
        if form is None:
            group = group_of(units)
            wider: tuple[Class, ...] = ((team, group), (team, ANY_SIZE), (EVERYBODY, ANY_SIZE))
            form = self._numbers[next(one for one in wider if one in self._numbers)]
            self._forms[team, units] = form
        return form

    def rank(self, team: int, units: int, age_s: float, predicted_s: float) -> float:
        """The Gittins index at that age: least expected seconds spent per chance to end; low goes first."""
        form = np.array([self.form(team, units)])
        ages_s, predicted = np.array([float(age_s)]), np.array([float(predicted_s)])
        return float(self.ranks(form, ages_s, predicted, np.ones(1, np.bool_))[0])

    def ranks(self, forms: Ints, ages_s: Floats, predicted_s: Floats, may_stop: Flags) -> Floats:
        """The same for many, as columns; ``forms`` are numbers of classes.

        What may not be stopped once it runs cannot be left when it turns out to be long: for that its expected
        seconds left count.
        """
        bins = np.where(predicted_s > 1, bins_of(predicted_s) + 1, 0)
        missing = ~self._is_drawn[forms, bins]
        if missing.any():
            for form, number in set(zip(forms[missing].tolist(), bins[missing].tolist(), strict=True)):
                self._draw(form, number)
        # Between bins along the logarithm of the age.
        at = 2.0 * np.log2(np.maximum(ages_s, 1.0))
        low = np.minimum(at.astype(np.int64), BINS - 2)
        part = np.minimum(at - low, 1.0)
        found: Floats = _between(self._gittins, forms, bins, low, part)
        if not may_stop.all():
            found = np.where(may_stop, found, _between(self._means, forms, bins, low, part))
        return found

    def _draw(self, form: int, number: int) -> None:
        chance = self._chance(form, number)
        self._gittins[form, number], self._means[form, number] = gittins(chance), mean_remaining(chance)
        self._is_drawn[form, number] = True

    def _chance(self, form: int, number: int) -> Floats:
        chance = self._chances[self._classes[form]]
        return chance * self._errors.likelihood(number - 1) if number else chance


def _between(curves: Floats, forms: Ints, bins: Ints, low: Ints, part: Floats) -> Floats:
    found: Floats = (1.0 - part) * curves[forms, bins, low] + part * curves[forms, bins, low + 1]
    return found


_last: list[tuple[Learned, Curves]] = []


def curves_of(learned: Learned) -> Curves:
    """The curves of what was learned; the last one's are kept."""
    known = _last[0] if _last else None
    if known is None or known[0] is not learned:
        known = learned, Curves(learned)
        _last[:] = [known]
    return known[1]
