"""How much of a gang each node could take, and which boards would cost its quota least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scheduler.engine.board import Board
from scheduler.engine.host import Host
from scheduler.engine.place.fill import Spot
from scheduler.engine.shape import Shape


class NodePart(NamedTuple):
    """What one node could give a gang: boards with room, and how many its CPU and memory allow."""

    boards: list[Board]
    most: int

    @property
    def units(self) -> int:
        """How many units the node could take."""
        return min(len(self.boards), self.most)


def parts_now(
    shape: Shape, groups: Iterable[Sequence[Board]], host_of: Callable[[Board], Host]
) -> list[NodePart]:
    """What each node could give now."""
    return [
        NodePart([b for b in boards if b.room(shape)], host_of(boards[0]).units(shape)) for boards in groups
    ]


def parts_idle(
    shape: Shape, groups: Iterable[Sequence[Board]], host_of: Callable[[Board], Host]
) -> list[NodePart]:
    """What each node could give if it held nothing."""
    return [
        NodePart([b for b in boards if b.idle_room(shape)], host_of(boards[0]).idle_units(shape))
        for boards in groups
    ]


def nodes_able(shape: Shape, parts: Iterable[NodePart]) -> int:
    """How many nodes could take a whole part of a gang of equal parts."""
    return sum(part.units >= shape.wanted for part in parts)


def lightest(shape: Shape, parts: Sequence[NodePart]) -> list[Spot] | None:
    """The boards that cost the quota least, node by node; None when they are too few. Earlier nodes on a tie."""
    by_cost = [sorted(part.boards, key=lambda b: b.unit_cost(shape)) for part in parts]
    if shape.nodes:
        chosen = [
            boards[: shape.wanted]
            for boards, part in zip(by_cost, parts, strict=True)
            if part.units >= shape.wanted
        ]
        chosen.sort(key=lambda boards: sum(b.unit_cost(shape) for b in boards))
        found = [board for boards in chosen[: shape.nodes] for board in boards]
    else:
        most = [board for boards, part in zip(by_cost, parts, strict=True) for board in boards[: part.most]]
        found = sorted(most, key=lambda b: b.unit_cost(shape))[: shape.wanted]
    if len(found) < shape.units:
        return None
    return [(board, 0) for board in sorted(found, key=lambda b: b.rank)]
