"""Orders that no grant changes: arrival, priority and arrival, shortest predicted GPU-time with ageing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scheduler.engine.model import Claim, Grant, Policy, Snapshot
from scheduler.engine.order.live.costs import Costs
from scheduler.engine.order.live.ranking import Sorted, tie

SIZE_POWER = 0.8
AGEING_POWER = 1.0


class Fifo:
    """First come, first served, whatever the priority."""

    by_priority: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        pass

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By time queued."""
        return Sorted(claims, tie)

    def note(self, claim: Claim, grant: Grant) -> None:
        """Nothing is counted."""


class PriorityFifo(Fifo):
    """Higher priority first, then who has waited longest."""

    by_priority: ClassVar[bool] = True


class Shortest(Fifo):
    """Least predicted time x size^0.8 first, divided by 1 + waited / ``ageing_s``.

    The prediction is what was learned for the request, else the time it asks for.
    """

    by_priority: ClassVar[bool] = True

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._now = snapshot.taken_at
        self._ageing_s = max(policy.ageing_s, 1)
        self._costs = Costs(snapshot)

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By predicted GPU-time as of now."""
        return Sorted(claims, lambda claim: (self._worth(claim), tie(claim)))

    def _worth(self, claim: Claim) -> float:
        length = claim.predicted_s or claim.duration_s
        return aged(claim, length, self._costs, self._now.timestamp(), self._ageing_s, AGEING_POWER)


def aged(claim: Claim, length_s: float, costs: Costs, now: float, ageing_s: float, power: float) -> float:
    """Length x size^0.8 / (1 + waited / ageing_s)^power; ``now`` in seconds since the epoch."""
    waited = max(0.0, now - claim.queued_at.timestamp())
    size = max(costs.of(claim), 1) / 1000
    return float(max(length_s, 1.0) * size**SIZE_POWER / (1.0 + waited / ageing_s) ** power)
