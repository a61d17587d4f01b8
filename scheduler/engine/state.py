"""The explicit, incremental state behind every decision.

``plan`` and ``forecast`` are thin faces over it: one arrival or one end costs microseconds, not a
rebuild. A state belongs to one caller; it is never shared between threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from scheduler.engine.explain import Explainer
from scheduler.engine.model import Claim, Grant, GrantedSlot, Reason
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import Spot, spots_cost
from scheduler.engine.shape import Shape, shape_of


class Refusal(Enum):
    """What stood in the way first: the team's quota, or the room on the boards."""

    QUOTA = "quota"
    CAPACITY = "capacity"


class EngineState(Occupancy):
    """A room that answers claims: ``decide`` says what one would get, ``apply`` makes it so."""

    def decide(self, claim: Claim) -> Grant | tuple[Reason, ...]:
        """What one claim would get now: a grant (not yet applied), or ordered reasons why not."""
        shape = shape_of(claim, self.policy)
        answer = self.try_grant(claim, shape)
        return answer if isinstance(answer, Grant) else Explainer(self).explain(claim, shape)

    def try_grant(self, claim: Claim, shape: Shape) -> Grant | Refusal:
        """A grant for the claim, or what refuses it. Changes nothing."""
        if not self.can_pay(claim.team_id, shape):
            return Refusal.QUOTA
        length = self.lengths.of(claim)
        spots = self.spots(shape, claim.duration_s, length) if shape.wanted else None
        if spots is None:
            return Refusal.CAPACITY
        cost = spots_cost(spots, shape)
        if not self.budget.allows(claim.team_id, cost):
            spots = self.cheapest(shape) or spots
            cost = spots_cost(spots, shape)
            if not self.budget.allows(claim.team_id, cost):
                return Refusal.QUOTA
        return self.granted(claim, shape, spots)

    def granted(self, claim: Claim, shape: Shape, spots: Sequence[Spot]) -> Grant:
        """The grant of these spots for all the time that was asked for."""
        slots = _slots(spots, shape, claim.max_memory_mib)
        node_id = spots[0][0].node.id
        cost = spots_cost(spots, shape)
        return Grant(claim.id, claim.team_id, node_id, slots, cost, claim.duration_s)


def _slots(spots: Sequence[Spot], shape: Shape, max_memory_mib: int) -> tuple[GrantedSlot, ...]:
    """The spots as slots; the first one on each node says what the grant takes of that node."""
    if not shape.wants_host:
        return tuple([board.slot(shape, start, max_memory_mib) for board, start in spots])
    units = Counter(board.node.id for board, _ in spots)
    slots = []
    for board, start in spots:
        host = shape.host_part(units.pop(board.node.id)) if board.node.id in units else (0, 0)
        slots.append(board.slot(shape, start, max_memory_mib, host))
    return tuple(slots)
