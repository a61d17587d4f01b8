"""By what was used so far, all of it or in two levels (Gu et al., Tiresias, NSDI 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engine.model import Claim, Policy, Snapshot
from scheduler.engine.order.live.costs import units_of
from scheduler.engine.order.live.fixed import Fifo
from scheduler.engine.order.live.ranking import Life, Sorted, tie

LEVEL_GPU_S = 18_000


class Attained(Fifo):
    """Who has used fewest GPU-seconds goes first."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._now = snapshot.taken_at.timestamp()

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By what was used so far."""
        return Sorted(claims, lambda claim: (self.score(claim), tie(claim)))

    def score(self, claim: Claim) -> float:
        """GPU-seconds used."""
        return self._score(claim.ran_s, units_of(claim))

    def score_of(self, life: Life) -> float:
        """GPU-seconds used, those of the present run included."""
        return self._score(life.ran_s + max(self._now - life.began, 0.0), life.units)

    def _score(self, age_s: float, units: int) -> float:
        return (age_s + 1.0) * units


class TwoLevel(Attained):
    """Those below 18,000 GPU-seconds go before those above, each level by arrival."""

    def _score(self, age_s: float, units: int) -> float:
        return 1.0 if age_s * units < LEVEL_GPU_S else 2.0
