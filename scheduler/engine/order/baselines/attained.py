"""By what was used so far, all of it or in two levels (Gu et al., Tiresias, NSDI 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import datetime
from typing import Any

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.model import Claim, PolicyRules, Snapshot
from scheduler.engine.order.costs import units_of
from scheduler.engine.order.fixed import Fifo
from scheduler.engine.order.ranking import LeaseColumns, Sorted, tie

LEVEL_GPU_S = 18_000


class Attained(Fifo):
    """Who has used fewest GPU-seconds goes first."""

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._now = snapshot.taken_at.timestamp()

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By what was used so far."""
        return Sorted(claims, lambda claim: (self.score(claim), tie(claim)))

    def score(self, claim: Claim) -> float:
        """GPU-seconds used."""
        return float(self._scores(np.array([claim.ran_s]), np.array([units_of(claim)]))[0])

    def scores_of(self, lives: LeaseColumns) -> Floats:
        """GPU-seconds used, those of the present run included."""
        at = lives.columns
        return self._scores(
            at[LeaseColumns.ran_s] + np.maximum(self._now - at[LeaseColumns.began], 0.0),
            at[LeaseColumns.units],
        )

    def later(self, now: datetime, claims: Sequence[Claim]) -> Attained:
        """The same at a later instant."""
        found = copy(self)
        found._now = now.timestamp()
        return found

    def _scores(self, ages_s: Any, units: Any) -> Floats:
        found: Floats = (ages_s + 1.0) * units
        return found


class TwoLevel(Attained):
    """Those below 18,000 GPU-seconds go before those above, each level by arrival."""

    def _scores(self, ages_s: Any, units: Any) -> Floats:
        return np.where(ages_s * units < LEVEL_GPU_S, 1.0, 2.0)
