"""How long a request will probably run: habits and forests, asked for one kind after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.learning.habits import Habits, SubmittedRequest, habits_from
from scheduler.engine.learning.trees import Forest, forest_from

# A correction counts half: what has ended by now was shorter than what is to come, and taught it so.
HALF = 0.5
LONGEST_S = 10 * 366 * 86_400


@dataclass(frozen=True, slots=True)
class Guess:
    """Seconds that half, and nine of ten, of such requests run; MiB of memory at their peak, None unknown."""

    likely_s: int
    most_s: int
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Durations:
    """A model of lengths: habits, and forests for what the median and the ninth decile differ from them (logs)."""

    habits: Habits
    p50: Forest
    p90: Forest

    def guess(self, kinds: Sequence[SubmittedRequest]) -> list[Guess]:
        """One guess per kind, never longer than it asks for."""
        if not kinds:
            return []
        pairs = zip(kinds, *self.logs(kinds), strict=True)
        return [self._guess(kind, float(p50), float(p90)) for kind, p50, p90 in pairs]

    def logs(self, kinds: Sequence[SubmittedRequest]) -> tuple[Floats, Floats]:
        """Logarithms of the seconds that half, and nine of ten, stay below, whatever they ask for."""
        known = [self.habits.features(kind) for kind in kinds]
        rows = np.array([row for _, row in known])
        habit = np.array([one for one, _ in known])
        return habit + HALF * self.p50.predict(rows), habit + self.p90.predict(rows)

    def _guess(self, kind: SubmittedRequest, p50: float, p90: float) -> Guess:
        bound = kind.asked_s if kind.asked_s > 0 else LONGEST_S
        top = math.log(LONGEST_S)
        likely = min(max(round(math.exp(min(p50, top))), 1), bound)
        most = min(max(round(math.exp(min(p90, top))), likely), bound)
        return Guess(likely, most, self.habits.memory_mib(kind))

    def body(self) -> dict[str, Any]:
        """The model as plain values."""
        return {"habits": self.habits.body(), "p50": self.p50.body(), "p90": self.p90.body()}


def durations_from(body: dict[str, Any]) -> Durations:
    """The model that ``body`` gave. Raises KeyError, TypeError or ValueError for anything else."""
    return Durations(habits_from(body["habits"]), forest_from(body["p50"]), forest_from(body["p90"]))
