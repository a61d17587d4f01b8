"""Layouts of one kind of board: which sets of slices are legal, and what each strands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scheduler.engine.geometry import Geometry, Span, geometry_of
from scheduler.engine.model import Device

Placed = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """SM figures of a board as its driver gives them; None and a missing profile are unknown."""

    total: int | None
    of: Mapping[str, int | None]


UNKNOWN = Multiprocessors(None, {})


@dataclass(frozen=True, slots=True)
class Stranded:
    """What a layout leaves of its board: memory slices, share and multiprocessors, also in thousandths.

    ``unusable_slices`` are the free memory slices that no further partition could cover. The other
    figures count whatever the layout's partitions do not cover: it is lost as long as the layout stands,
    even where the slices left over could still be cut. ``sm_count`` and ``sm_milli`` are None where the
    driver's figures do not say it.
    """

    free_slices: int
    unusable_slices: int
    memory_milli: int
    share_milli: int
    sm_count: int | None
    sm_milli: int | None


def legal_placements(device: Device, held: Placed = ()) -> Placed:
    """Every (profile, start) that could be made beside the partitions ``held``, in profile order."""
    geometry = geometry_of(device)
    mask = mask_of(geometry, held)
    counts = _counts(held)
    return tuple(
        (name, span.start)
        for name, spans in geometry.spans.items()
        if geometry.most(name, counts)
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


def stranded(device: Device, layout: Placed, sm: Multiprocessors = UNKNOWN) -> Stranded:
    """What the layout leaves over. Partitions of unknown profiles count as nothing in slices and share."""
    geometry = geometry_of(device)
    free = device.grid - mask_of(geometry, layout).bit_count()
    covered = sum(geometry.profiles[name].share_milli for name, _ in layout if name in geometry.profiles)
    idle_sm = _idle_multiprocessors(layout, sm)
    return Stranded(
        free_slices=free,
        unusable_slices=free - _coverable(device, geometry, layout).bit_count(),
        memory_milli=_milli(free, device.grid),
        share_milli=max(1000 - covered, 0),
        sm_count=idle_sm,
        sm_milli=None if idle_sm is None or not sm.total else _milli(idle_sm, sm.total),
    )


def _coverable(device: Device, geometry: Geometry, layout: Placed) -> int:
    covered = 0
    for name, start in legal_placements(device, layout):
        covered |= mask_of(geometry, ((name, start),))
    return covered


def _idle_multiprocessors(layout: Placed, sm: Multiprocessors) -> int | None:
    used = [sm.of.get(name) for name, _ in layout]
    known = [count for count in used if count is not None]
    if sm.total is None or len(known) < len(used):
        return None
    return max(sm.total - sum(known), 0)


def _milli(part: int, whole: int) -> int:
    return round(part * 1000 / whole)


def mask_of(geometry: Geometry, layout: Iterable[tuple[str, int]]) -> int:
    """The memory slices that a layout's partitions take."""
    mask = 0
    for name, start in layout:
        if name in geometry.profiles:
            mask |= ((1 << geometry.profiles[name].slices) - 1) << start
    return mask


def _extend(geometry: Geometry, places: list[tuple[Span, str]], held: Placed, mask: int) -> Iterator[Placed]:
    counts = _counts(held)
    for at, (span, name) in enumerate(places):
        if span.bits & mask or not geometry.most(name, counts):
            continue
        longer = (*held, (name, span.start))
        yield longer
        yield from _extend(geometry, places[at + 1 :], longer, mask | span.bits)


def _counts(held: Placed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, _ in held:
        counts[name] = counts.get(name, 0) + 1
    return counts
