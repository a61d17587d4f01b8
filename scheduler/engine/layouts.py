"""Layouts of one kind of board: which sets of slices are legal, what each strands, which to change to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.engine.geometry import Geometry, Span, geometry_of
from scheduler.engine.model import Claim, DeviceInfo, Repartition

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


def legal_placements(device: DeviceInfo, held: Placed = ()) -> Placed:
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


def is_legal(device: DeviceInfo, layout: Placed) -> bool:
    """Whether the partitions of a layout can stand on the board together."""
    held: Placed = ()
    for one in layout:
        if one not in legal_placements(device, held):
            return False
        held = (*held, one)
    return True


def layouts(device: DeviceInfo) -> Iterator[Placed]:
    """Every legal layout with at least one partition, each once, sorted by start."""
    geometry = geometry_of(device)
    places = sorted(
        ((span, name) for name, spans in geometry.spans.items() for span in spans),
        key=lambda place: (place[0].start, place[1]),
    )
    yield from _extend(geometry, places, (), 0)


def maximal_layouts(device: DeviceInfo) -> list[Placed]:
    """The layouts to which nothing can be added."""
    return [layout for layout in layouts(device) if not legal_placements(device, layout)]


def stranded(device: DeviceInfo, layout: Placed, sm: Multiprocessors = UNKNOWN) -> Stranded:
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


def _coverable(device: DeviceInfo, geometry: Geometry, layout: Placed) -> int:
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


def repartition(idle: Sequence[DeviceInfo], waiting: Sequence[Claim]) -> tuple[Repartition, ...]:
    """Which idle boards should change their pinned layout so that waiting MIG claims could start.

    ``idle`` are open boards on which nothing lives, ``waiting`` the claims that lack room, in queue
    order; claims of other modes and boards without a pinned layout are passed over. Each claim gets its
    units on one node: in positions that are pinned already where they suffice, else by cutting the
    fewest boards anew. A new layout keeps the old positions that still fit and is filled up, so that
    nothing more could be added. The same input gives the same answer; nothing is changed here.
    """
    nodes: dict[int, list[_Cut]] = {}
    for device in idle:
        if device.layout is not None and not device.blocked:
            nodes.setdefault(device.node_id, []).append(_Cut(device))
    for claim in waiting:
        if claim.mode == "mig" and claim.count > 0:
            _cut_for(claim, list(nodes.values()))
    cuts = [cut for node in nodes.values() for cut in node if cut.is_new]
    return tuple(Repartition(cut.device.id, cut.layout()) for cut in cuts)


class _Cut:
    """An idle board on paper: its pinned positions and those given to waiting claims."""

    def __init__(self, device: DeviceInfo) -> None:
        self.device = device
        self.bare = replace(device, layout=None)
        self.pinned = geometry_of(device)
        self.free = geometry_of(self.bare)
        self.taken: Placed = ()
        self.mask = 0
        self.is_new = False

    def places(self, profile: str, wanted: int, is_pinned: bool) -> list[tuple[str, int]]:
        """Where up to so many units would stand, in pinned positions or anywhere."""
        geometry = self.pinned if is_pinned and not self.is_new else self.free
        if not geometry.offers(profile):
            return []
        most = geometry.most(profile, _counts(self.taken))
        count = min(wanted, most, geometry.units(profile, self.mask))
        return [(profile, start) for start in geometry.starts(profile, self.mask, count)]

    def take(self, places: Sequence[tuple[str, int]]) -> None:
        """Give positions to a claim; one that is not pinned makes the layout a new one."""
        self.taken = (*self.taken, *places)
        self.mask = mask_of(self.free, self.taken)
        self.is_new = self.is_new or any(place not in (self.device.layout or ()) for place in places)

    def layout(self) -> Placed:
        """The positions given away, the old ones that still fit, and the largest that fill the rest."""
        held = self.taken
        for place in self.device.layout or ():
            if place in legal_placements(self.bare, held):
                held = (*held, place)
        while left := legal_placements(self.bare, held):
            sizes = self.free.profiles
            held = (*held, max(left, key=lambda one: (sizes[one[0]].slices, "+" not in one[0], -one[1])))
        return tuple(sorted(held, key=lambda place: place[1]))


def _cut_for(claim: Claim, nodes: Sequence[list[_Cut]]) -> None:
    best: list[tuple[_Cut, list[tuple[str, int]]]] | None = None
    fewest = 0
    for cuts in nodes:
        able = [cut for cut in cuts if not claim.models or cut.device.model in claim.models]
        # Pinned places first, or anywhere where those hinder.
        found = _fill(claim, able, (True, False)) or _fill(claim, able, (False,))
        news = sum(
            not cut.is_new and any(place not in (cut.device.layout or ()) for place in places)
            for cut, places in found or ()
        )
        if found is not None and (best is None or news < fewest):
            best, fewest = found, news
    for cut, places in best or ():
        cut.take(places)


def _fill(
    claim: Claim, cuts: Sequence[_Cut], passes: tuple[bool, ...]
) -> list[tuple[_Cut, list[tuple[str, int]]]] | None:
    need = claim.count
    found: dict[int, tuple[_Cut, list[tuple[str, int]]]] = {}
    for is_pinned in passes:
        for cut in sorted(cuts, key=lambda one: not one.is_new):
            if not need or cut.device.id in found:
                continue
            if places := cut.places(claim.profile, need, is_pinned):
                found[cut.device.id] = (cut, places)
                need -= len(places)
    return None if need else list(found.values())


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
