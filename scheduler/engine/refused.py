"""What need not be tried again while room only shrinks."""

from __future__ import annotations

from scheduler.engine.shape import Shape

Unit = tuple[object, ...]
Amount = tuple[int, ...]


class Refused:
    """The shapes that found no room since the last end: the same or more of the same unit finds none."""

    def __init__(self) -> None:
        self._least: dict[Unit, list[Amount]] = {}

    def add(self, shape: Shape) -> None:
        """Remember that there is no room for the shape (a malformed one says nothing about room)."""
        if not shape.wanted:
            return
        amount = _amount(shape)
        others = self._least.get(_unit(shape), [])
        self._least[_unit(shape)] = [amount, *(one for one in others if not _is_within(amount, one))]

    def covers(self, shape: Shape) -> bool:
        """Whether the shape cannot fit because as much or less of it did not."""
        least = self._least.get(_unit(shape))
        return least is not None and any(_is_within(one, _amount(shape)) for one in least)


def _unit(shape: Shape) -> Unit:
    return shape.kind, shape.share_milli, shape.memory_mib, shape.team_id, shape.nodes == 0


def _amount(shape: Shape) -> Amount:
    return shape.wanted, shape.cpu_milli, shape.host_memory_mib, shape.nodes


def _is_within(small: Amount, big: Amount) -> bool:
    return all(less <= more for less, more in zip(small, big, strict=True))
