"""Filling boards in a given order: the part that placement policies share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.engine.board import Board
from scheduler.engine.shape import Shape

Spot = tuple[Board, int]
Rooms = Iterable[tuple[Board, int]]
Groups = Sequence[Sequence[Board]]


def node_room(boards: Iterable[Board], shape: Shape) -> int:
    """How many units of one claim these boards of a node can take together."""
    return sum([board.room(shape) for board in boards])


def fill(rooms: Rooms, shape: Shape) -> list[Spot] | None:
    """Spots for all units, taking from each board in turn as much as it has; None when they run out.

    Each board comes with the number of units it can take (``Board.room``).
    """
    spots: list[Spot] = []
    need = shape.wanted
    profile = shape.kind.profile
    for board, units in rooms:
        take = min(units, need)
        if profile and take:
            spots += [(board, start) for start in board.geometry.starts(profile, board.mask, take)]
        elif take:
            spots.append((board, 0))
        need -= take
        if not need:
            return spots
    return None


def spots_cost(spots: Iterable[Spot], shape: Shape) -> int:
    """What a placement costs its quota."""
    return sum([board.unit_cost(shape) for board, _ in spots])


def cheapest(shape: Shape, groups: Groups) -> list[Spot] | None:
    """The placement with the least cost to the quota; the earlier node on a tie.

    Asked only when the policy's own choice is above the team's headroom and boards differ in weight.
    """
    best: list[Spot] | None = None
    for boards in groups:
        lightest = sorted(boards, key=lambda b: b.unit_cost(shape))
        spots = fill([(board, board.room(shape)) for board in lightest], shape)
        if spots and (best is None or spots_cost(spots, shape) < spots_cost(best, shape)):
            best = spots
    return best
