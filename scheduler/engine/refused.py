"""What need not be tried again while room only shrinks."""

from __future__ import annotations

from scheduler.engine.shape import Shape

Unit = tuple[object, int, int, int]


class Refused:
    """The shapes that found no room since the last end: the same or more of the same unit finds none."""

    def __init__(self) -> None:
        self._least: dict[Unit, int] = {}

    def add(self, shape: Shape) -> None:
        """Remember that there is no room for the shape (a malformed one says nothing about room)."""
        if not shape.wanted:
            return
        unit = _unit(shape)
        self._least[unit] = min(shape.wanted, self._least.get(unit, shape.wanted))

    def covers(self, shape: Shape) -> bool:
        """Whether the shape cannot fit because as many or fewer of its units did not."""
        least = self._least.get(_unit(shape))
        return least is not None and least <= shape.wanted


def _unit(shape: Shape) -> Unit:
    return shape.kind, shape.share_milli, shape.memory_mib, shape.team_id
