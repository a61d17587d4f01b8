"""Orders that no grant changes: arrival, priority and arrival, shortest predicted GPU-time with ageing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scheduler.engine.model import Claim, Grant, PolicyRules, Snapshot
from scheduler.engine.order.burden import aged, burden, waited_s
from scheduler.engine.order.costs import Costs
from scheduler.engine.order.ranking import Sorted, tie

AGEING_POWER = 1.0


class Fifo:
    """First come, first served, whatever the priority."""

    by_priority: ClassVar[bool] = False
    blocks: ClassVar[bool] = False

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
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

    See ``length_s`` for the time.
    """

    by_priority: ClassVar[bool] = True

    def __init__(self, snapshot: Snapshot, policy: PolicyRules) -> None:
        self._now = snapshot.taken_at
        self._ageing_s = max(policy.ageing_s, 1)
        self._costs = Costs(snapshot)

    def ranking(self, claims: Sequence[Claim]) -> Sorted:
        """By predicted GPU-time as of now."""
        now = self._now.timestamp()
        waited = [waited_s(now, claim.queued_at.timestamp(), claim.ran_s) for claim in claims]
        burdens = burden([length_s(claim) for claim in claims], [self._costs.of(claim) for claim in claims])
        found = burdens / aged(waited, self._ageing_s, AGEING_POWER)
        worths = {claim.id: worth for claim, worth in zip(claims, found.tolist(), strict=True)}
        return Sorted(claims, lambda claim: (worths[claim.id], tie(claim)))


def length_s(claim: Claim) -> float:
    """How long the claim will still run by its own figures: what is predicted, else what it asks for.

    One that has run past its prediction is taken to run as long again, but never longer than it may.
    """
    if not claim.predicted_s:
        return float(claim.duration_s)
    left = claim.predicted_s - claim.ran_s if claim.predicted_s > claim.ran_s else claim.ran_s
    return float(min(left, claim.duration_s))
