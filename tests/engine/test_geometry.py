"""MIG positions against brute force: every mask of every kind of board in the table."""

from __future__ import annotations

from itertools import combinations

import pytest

from nodeagent.protocol.boards import all_boards
from scheduler.engine.geometry import Geometry, geometry_of
from scheduler.engine.layouts import is_legal, mask_of
from scheduler.engine.model import DeviceInfo, MigProfile
from tests.engine.builder import device

SEVEN = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
WITH_DOUBLE = (*SEVEN, "1g.20gb")
FOUR = ("1g.6gb", "2g.12gb", "4g.24gb")
ALL = ()
BOARDS = [
    ("h100-80gb", WITH_DOUBLE),
    ("a100-80gb", SEVEN),
    ("a30-24gb", FOUR),
    ("a30-24gb", ALL),
    ("h200-141gb", ALL),
    ("rtx-pro-6000-blackwell-96gb", ALL),
]


def brute_force_units(where: DeviceInfo, profile: str, mask: int) -> int:
    """The most partitions of a profile that can be added, by trying every set of starts."""
    size = next(p for p in where.profiles if p.name == profile)
    spots = [((1 << size.slices) - 1) << s for s in size.starts]
    free = [bits for bits in spots if not bits & mask]
    for count in range(len(free), 0, -1):
        for chosen in combinations(free, count):
            if sum(bits.bit_count() for bits in chosen) == _union(chosen).bit_count():
                return count
    return 0


def _union(masks: tuple[int, ...]) -> int:
    union = 0
    for bits in masks:
        union |= bits
    return union


def kind_of(where: DeviceInfo) -> tuple[object, ...]:
    """What positions depend on: the grid, and sizes, starts and maxima of the profiles in any order."""
    return where.grid, tuple(sorted((p.slices, p.starts, p.max_instances) for p in where.profiles))


def test_every_board_of_the_table_has_one_of_the_three_geometries_checked_here() -> None:
    checked = {kind_of(device(model)) for model, names in BOARDS if names == ALL}

    found = {kind_of(device(name)) for name, kind in all_boards().items() if kind.profiles}

    assert found == checked


@pytest.mark.parametrize(("model", "names"), BOARDS)
def test_units_agree_with_brute_force_on_every_mask(model: str, names: tuple[str, ...]) -> None:
    where = device(model, names)
    geometry = geometry_of(where)

    wrong = [
        (name, mask)
        for name in geometry.spans
        for mask in range(1 << where.grid)
        if geometry.units(name, mask) != brute_force_units(where, name, mask)
    ]

    assert wrong == []


@pytest.mark.parametrize(("model", "names"), BOARDS)
def test_chosen_starts_are_legal_on_every_mask_and_for_every_count(
    model: str, names: tuple[str, ...]
) -> None:
    where = device(model, names)
    geometry = geometry_of(where)

    for name in geometry.spans:
        for mask in range(1 << where.grid):
            for count in range(1, geometry.units(name, mask) + 1):
                assert_disjoint(geometry, name, mask, geometry.starts(name, mask, count), count)


def assert_disjoint(geometry: Geometry, name: str, mask: int, starts: tuple[int, ...], count: int) -> None:
    """Fail unless the starts are legal, apart from each other and from what is taken."""
    profile = geometry.profiles[name]
    assert len(starts) == count
    for start in starts:
        bits = ((1 << profile.slices) - 1) << start
        assert start in profile.starts
        assert not bits & mask
        mask |= bits


def test_the_best_start_leaves_the_most_positions() -> None:
    geometry = geometry_of(device("h100-80gb", SEVEN))

    for mask in range(256):
        for name in SEVEN:
            if geometry.units(name, mask):
                (start,) = geometry.starts(name, mask, 1)
                bits = (1 << geometry.profiles[name].slices) - 1
                left = geometry.future(mask | bits << start)
                others = [geometry.future(mask | s.bits) for s in geometry.spans[name] if not s.bits & mask]
                assert left == max(others)


def test_three_slices_and_a_four_pair_up() -> None:
    where = device("h100-80gb", SEVEN)

    assert geometry_of(where).starts("3g.40gb", 0, 1) == (4,)
    assert is_legal(where, (("4g.40gb", 0), ("3g.40gb", 4)))
    assert not is_legal(where, (("3g.40gb", 0), ("4g.40gb", 0)))


def test_starts_for_several_units_leave_room_for_the_last_one() -> None:
    """A greedy first choice in the middle of unaligned starts would leave no room for the second."""
    odd = (
        MigProfile("pair", 2, (0, 1, 2), 500, 1, 2),
        MigProfile("edge", 1, (0, 3), 250, 1, 2),
        MigProfile("left", 1, (0,), 250, 1, 1),
        MigProfile("right", 1, (3,), 250, 1, 1),
    )
    geometry = Geometry(4, odd, None)

    assert geometry.starts("pair", 0, 1) == (1,)
    assert sorted(geometry.starts("pair", 0, 2)) == [0, 2]


def test_a_layout_pins_what_geometry_offers() -> None:
    where = device("h100-80gb", layout=(("2g.20gb", 0), ("3g.40gb", 4), ("3g.40gb", 99)))
    geometry = geometry_of(where)

    assert geometry.units("2g.20gb", 0) == 1
    assert not geometry.offers("1g.10gb")
    assert geometry.starts("3g.40gb", 0, 1) == (4,)


def test_a_board_of_twelve_slices_works_the_same() -> None:
    where = device("rtx-pro-6000-blackwell-96gb")
    geometry = geometry_of(where)

    assert geometry.units("1g.24gb", 0) == 4
    assert geometry.units("2g.48gb", mask_of(geometry, (("1g.24gb", 3),))) == 1
