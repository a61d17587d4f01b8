"""Layouts of one kind of board: which sets of slices are legal, and what each strands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduler.engine.geometry import Geometry, Span, geometry_of
from scheduler.engine.model import Device

Placed = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Stranded:
    """What a layout leaves of its board: free memory slices, how many of them no slice can use, and share.

    ``share_milli`` is what the layout's slices do not cover of the board, in thousandths; it is lost
    as long as the layout stands, even where the slices left over could still be cut.
    """

    free_slices: int
    unusable_slices: int
    share_milli: int


def legal_placements(device: Device, held: Placed = ()) -> Placed:
    """Every (profile, start) that could be made beside the partitions ``held``, in profile order."""
    geometry = geometry_of(device)
    mask = mask_of(geometry, held)
    counts = _counts(held)
    return tuple(
        (name, span.start)
        for name, spans in geometry.spans.items()
        if counts.get(name, 0) < geometry.profiles[name].max_instances
        for span in spans
        if not span.bits & mask
    )


def is_legal(device: Device, layout: Placed) -> bool:
    """Whether the partitions of a layout can stand on the board together."""
    held: Placed = ()
    for one in layout:
        if one not in legal_placements(device, held):
            return False
        held = (*held, one)
    return True


def layouts(device: Device) -> Iterator[Placed]:
    """Every legal layout with at least one partition, each once, sorted by start."""
    geometry = geometry_of(device)
    places = sorted(
        ((span, name) for name, spans in geometry.spans.items() for span in spans),
        key=lambda place: (place[0].start, place[1]),
    )
    yield from _extend(geometry, places, (), 0)


def maximal_layouts(device: Device) -> list[Placed]:
    """The layouts to which nothing can be added."""
    return [layout for layout in layouts(device) if not legal_placements(device, layout)]


def stranded(device: Device, layout: Placed) -> Stranded:
    """What the layout leaves over. Unknown profiles count as nothing."""
    geometry = geometry_of(device)
    mask = mask_of(geometry, layout)
    free = device.grid - mask.bit_count()
    covered = sum(geometry.profiles[name].share_milli for name, _ in layout if name in geometry.profiles)
    return Stranded(free, free - geometry.usable(mask), max(1000 - covered, 0))


def mask_of(geometry: Geometry, layout: Iterable[tuple[str, int]]) -> int:
    """The memory slices that a layout's partitions take."""
    mask = 0
    for name, start in layout:
        if name in geometry.profiles:
            mask |= ((1 << geometry.profiles[name].slices) - 1) << start
    return mask


def _extend(geometry: Geometry, places: list[tuple[Span, str]], held: Placed, mask: int) -> Iterator[Placed]:
    for at, (span, name) in enumerate(places):
        if span.bits & mask or _counts(held).get(name, 0) >= geometry.profiles[name].max_instances:
            continue
        longer = (*held, (name, span.start))
        yield longer
        yield from _extend(geometry, places[at + 1 :], longer, mask | span.bits)


def _counts(held: Placed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, _ in held:
        counts[name] = counts.get(name, 0) + 1
    return counts
