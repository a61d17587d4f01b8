"""Shapes that found no room, and need not be tried again while room only shrinks."""

from __future__ import annotations

from scheduler.engine.shape import Shape

Unit = tuple[object, ...]
Amount = tuple[int, int, int, int]


class RefusedShapes:
    """The shapes that found no room since the last end: the same or more of the same unit finds none."""

    def __init__(self) -> None:
        self._least: dict[Unit, list[Amount]] = {}

    def add(self, shape: Shape) -> None:
        """Remember that there is no room for the shape (a malformed one says nothing about room)."""
        if not shape.wanted:
            return
        amount = shape.wanted, shape.cpu_milli, shape.host_memory_mib, shape.nodes
        self._least.setdefault(_unit(shape), []).append(amount)

    def covers(self, shape: Shape) -> bool:
        """Whether the shape cannot fit because as much or less of it did not."""
        return any(
            wanted <= shape.wanted
            and cpu_milli <= shape.cpu_milli
            and memory_mib <= shape.host_memory_mib
            and nodes <= shape.nodes
            for wanted, cpu_milli, memory_mib, nodes in self._least.get(_unit(shape), ())
        )


def _unit(shape: Shape) -> Unit:
    return shape.kind, shape.share_milli, shape.memory_mib, shape.team_id, shape.nodes == 0
