"""Where MIG partitions may stand on one board: look-ups over the mask of occupied memory slices.

A mask has bit ``i`` set when memory slice ``i`` is taken. A board has at most 2^grid masks and few
profiles, so every answer is computed once per mask and then found in a dictionary. Rule of a legal
partition (the vendors' listings, checked exhaustively in the tests): a start from the driver's list,
no overlap in memory slices, not more than ``max_instances`` of a profile, and one partition with media
engines ("+me", "+me.all") per board whatever its size. A part of a legal layout is legal, so every legal
layout can be reached from any part of it, one partition after the other, without touching a live one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from scheduler.engine.model import DeviceInfo, MigProfile

Layout = tuple[tuple[str, int], ...]

# MIG user guide, profile attributes: at most one "+me" and one "+me.all" instance per board.
ONCE_PER_BOARD = frozenset({"me", "me.all"})


@dataclass(frozen=True, slots=True)
class Span:
    """One legal position of a profile: its first memory slice and the bits it takes."""

    start: int
    bits: int


class Geometry:
    """The positions of one kind of board, shared by all boards with equal profiles and layout."""

    def __init__(self, grid: int, profiles: tuple[MigProfile, ...], layout: Layout | None) -> None:
        self.grid = grid
        self.full = (1 << grid) - 1
        self.profiles = {p.name: p for p in profiles}
        self.spans = {p.name: _spans(p, grid, layout) for p in profiles}
        self._once = {
            name: tuple(other for other in self.profiles if _extra(other) == _extra(name))
            for name in self.profiles
            if _extra(name) in ONCE_PER_BOARD
        }
        # 1g and 1g+me stand at the same places: counting both would weigh small slices double.
        families = {(p.slices, self.spans[p.name]) for p in profiles}
        self._future_bits = [span.bits for _, spans in families for span in spans]
        self._units: dict[tuple[str, int], int] = {}
        self._starts: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self._usable: dict[int, int] = {}

    def offers(self, profile: str) -> bool:
        """Whether the profile has any position here."""
        return bool(self.spans.get(profile))

    def units(self, profile: str, mask: int) -> int:
        """How many more partitions of the profile fit beside ``mask``, by position alone."""
        key = (profile, mask)
        known = self._units.get(key)
        if known is None:
            free = [span for span in self.spans[profile] if not span.bits & mask]
            known = max((1 + self.units(profile, mask | span.bits) for span in free), default=0)
            self._units[key] = known
        return known

    def most(self, profile: str, counts: Mapping[str, int]) -> int:
        """How many more partitions of the profile the vendor's maxima admit beside those counted."""
        left = self.profiles[profile].max_instances - counts.get(profile, 0)
        once = self._once.get(profile)
        if once is not None and left > 0 and any(counts.get(name) for name in once):
            return 0
        return max(left, 0)

    def starts(self, profile: str, mask: int, count: int) -> tuple[int, ...]:
        """The best starts for ``count`` partitions; ``count`` must not exceed ``units``.

        Each step takes the position that leaves the most legal positions to all profiles (the lower
        one on a tie) among those after which the remaining count still fits.
        """
        key = (profile, mask, count)
        known = self._starts.get(key)
        if known is None:
            known = self._pick(profile, mask, count) if count else ()
            self._starts[key] = known
        return known

    def _pick(self, profile: str, mask: int, count: int) -> tuple[int, ...]:
        best = max(
            (
                span
                for span in self.spans[profile]
                if not span.bits & mask and self.units(profile, mask | span.bits) >= count - 1
            ),
            key=lambda span: (self.future(mask | span.bits), -span.start),
        )
        return (best.start, *self.starts(profile, mask | best.bits, count - 1))

    def future(self, mask: int) -> int:
        """How many legal positions of any profile are left beside ``mask``."""
        return sum(1 for bits in self._future_bits if not bits & mask)

    @cached_property
    def worth(self) -> list[int]:
        """How many whole blocks are left beside each mask: per size of partition, as many as fit apart.

        On a board of eight slices that is singles + pairs + halves + the whole board. A size stands
        wherever some profile of that size may.
        """
        sizes: dict[int, set[int]] = {}
        for name, spans in self.spans.items():
            sizes.setdefault(self.profiles[name].slices, set()).update(span.bits for span in spans)
        ordered = [sorted(blocks) for blocks in sizes.values()]
        return [sum(_apart(blocks, mask) for blocks in ordered) for mask in range(self.full + 1)]

    def usable(self, mask: int) -> int:
        """How many free memory slices some legal partition could still cover."""
        known = self._usable.get(mask)
        if known is None:
            covered = 0
            for bits in self._future_bits:
                if not bits & mask:
                    covered |= bits
            known = self._usable[mask] = covered.bit_count()
        return known


def _apart(blocks: list[int], mask: int) -> int:
    """How many equal blocks, given in order of their start, fit beside the mask without overlap."""
    count = 0
    for bits in blocks:
        if not bits & mask:
            mask |= bits
            count += 1
    return count


def _extra(profile: str) -> str:
    return profile.partition("+")[2]


def _spans(profile: MigProfile, grid: int, layout: Layout | None) -> tuple[Span, ...]:
    bits = (1 << profile.slices) - 1
    return tuple(
        Span(start, bits << start)
        for start in sorted(set(profile.starts))
        if start >= 0
        and start + profile.slices <= grid
        and (layout is None or (profile.name, start) in layout)
    )


@lru_cache(maxsize=512)
def _geometry(grid: int, profiles: tuple[MigProfile, ...], layout: Layout | None) -> Geometry:
    return Geometry(grid, profiles, layout)


def geometry_of(device: DeviceInfo) -> Geometry:
    """The shared position tables of a device's board and layout."""
    return _geometry(device.grid, device.profiles, device.layout)
