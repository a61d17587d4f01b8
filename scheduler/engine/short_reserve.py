"""What long requests leave free for shorter ones where they cannot be stopped.

Once such a request runs it keeps its boards to its end, however many short ones come meanwhile. So one whose
burden, expected seconds x size^0.8, is above ``LONG`` starts only where a part of the boards that could serve it
stays idle behind it, and above ``VERY_LONG`` the whole part. The part grows with what waits towards the one that the
policy names: where nobody waits, nothing is idle for nobody. What could then never start is exempt, and so is what
goes for better scores once it runs. Whole boards only; an order without lengths keeps nothing free.
"""

from __future__ import annotations

from scheduler.engine.model import Claim, Grant
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.policy import PolicyRules, heeds_scores
from scheduler.engine.shape import Shape, ShapeKind

LONG, VERY_LONG = 14_400.0, 230_400.0
LONG_PART = 0.43  # of what very long requests leave


class ShortReserve:
    """The rule within one turn: it hears of every grant. ``overload`` is how pressing it is that others wait."""

    def __init__(self, room: Occupancy, lineup: Lineup, policy: PolicyRules) -> None:
        self._room = room
        self._policy = policy
        self._order = lineup.burdened if policy.keep_short else None
        self.overload = self._order.overload if self._order else 0.0
        self._idle: dict[ShapeKind, tuple[set[int], int]] = {}

    def holds_back(self, claim: Claim, shape: Shape) -> bool:
        """Whether the claim would leave too little free."""
        if self._order is None or shape.kind.mode != "exclusive":
            return False
        if heeds_scores(claim, self._policy.preempting):
            return False
        burden = self._order.burden(claim)
        if burden <= LONG:
            return False
        part = self._policy.keep_short * self.overload * (1.0 if burden > VERY_LONG else LONG_PART)
        idle, boards = self._boards(shape.kind)
        spare = int(part * boards)
        return shape.units + spare <= boards and len(idle) - shape.units < spare

    def note(self, grant: Grant) -> None:
        """Count a grant."""
        for idle, _ in self._idle.values():
            idle.difference_update(slot.device_id for slot in grant.slots)

    def look_again(self) -> None:
        """Hear that something else than a grant changed what is idle."""
        self._idle.clear()

    def _boards(self, kind: ShapeKind) -> tuple[set[int], int]:
        """The idle boards that could serve the kind, and how many there are in all."""
        known = self._idle.get(kind)
        if known is None:
            usable = [board for board in self._room.matching(kind) if not board.blocked]
            idle = {board.device.id for board in usable if not board.use}
            known = self._idle[kind] = idle, len(usable)
        return known
