"""How much of something is free now, for the cards people choose from."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engine.board import Board
from scheduler.engine.gang_capacity import parts_now
from scheduler.engine.model import Claim, PolicyRules, Snapshot
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.shape import Shape, shape_of


def free_units(snapshot: Snapshot, claim: Claim, policy: PolicyRules | None = None) -> int:
    """How many claims like this one could start together now, queue and quota aside.

    With ``count`` 1 that is the number of free units. Each claim's units stay on one node, and the
    shares of one claim on different boards. 0 for a claim whose figures make no sense.
    """
    room = Occupancy.from_snapshot(snapshot, policy or PolicyRules())
    shape = shape_of(claim, room.policy)
    if not shape.wanted:
        return 0
    if shape.is_spread:
        return _gangs(room, shape)
    return sum(
        min(claims_on(boards, shape), room.host_of(boards[0]).times(shape))
        for boards in room.groups(shape.kind)
    )


def _gangs(room: Occupancy, shape: Shape) -> int:
    """Gangs that could start together; a gang of equal parts takes each node at most once."""
    parts = parts_now(shape, room.groups(shape.kind), room.host_of)
    if not shape.nodes:
        return sum(part.units for part in parts) // shape.wanted
    times = [
        min(len(part.boards) // shape.wanted, room.host_of(part.boards[0]).times(shape))
        for part in parts
        if part.boards
    ]
    gangs = sum(times) // shape.nodes
    while gangs and sum(min(n, gangs) for n in times) < gangs * shape.nodes:
        gangs -= 1
    return gangs


def claims_on(boards: Sequence[Board], shape: Shape) -> int:
    """How many claims of the shape the boards of one node could hold side by side, CPU and memory aside."""
    units = [board.units(shape) for board in boards]
    claims = sum(units) // shape.wanted
    if shape.is_shared:
        # Each claim takes at most one share of a board, so a board counts for at most that many claims.
        while claims and sum(min(n, claims) for n in units) < claims * shape.wanted:
            claims -= 1
    return claims
