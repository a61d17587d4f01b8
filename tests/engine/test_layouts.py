"""Layouts of every board in the table: which are legal, how they are reached, what they strand."""

from __future__ import annotations

import pytest

from nodeagent.protocol.boards import all_boards, board
from scheduler.engine.layouts import (
    Multiprocessors,
    Repartition,
    is_legal,
    layouts,
    legal_placements,
    maximal_layouts,
    repartition,
    stranded,
)
from scheduler.engine.model import DeviceInfo
from tests.engine.builder import Cluster, device

SEVEN = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
WITH_DOUBLE = (*SEVEN, "1g.20gb")
FOUR = ("1g.6gb", "2g.12gb", "4g.24gb")
PRO_FOUR = ("1g.24gb", "2g.48gb", "4g.96gb")
SLICED = sorted(name for name, kind in all_boards().items() if kind.profiles)


def multiprocessors(model: str) -> Multiprocessors:
    """The SM figures of a board in the table."""
    kind = board(model)
    return Multiprocessors(kind.sm_total, {p.name: p.sm_count for p in kind.profiles})


def brute_force_layouts(where: DeviceInfo) -> set[frozenset[tuple[str, int]]]:
    """Every set of non-overlapping partitions within the profiles' maxima, by trying all subsets."""
    spots = [(p, s, ((1 << p.slices) - 1) << s) for p in where.profiles for s in p.starts]
    found = {frozenset[tuple[str, int]]()}
    border = [(frozenset[tuple[str, int]](), 0)]
    while border:
        held, mask = border.pop()
        for profile, start, bits in spots:
            more = held | {(profile.name, start)}
            same = sum(1 for name, _ in more if name == profile.name)
            media = [name for name, _ in more if name.endswith(("+me", "+me.all"))]
            twins = len(media) - len({name.split("+")[1] for name in media})
            if not bits & mask and more not in found and same <= profile.max_instances and not twins:
                found.add(more)
                border.append((more, mask | bits))
    return found


@pytest.mark.parametrize(
    ("model", "names", "valid", "maximal"),
    [
        ("a100-80gb", SEVEN, 298, 19),
        ("h100-80gb", SEVEN, 298, 19),
        ("h100-80gb", WITH_DOUBLE, 723, 78),
        ("a30-24gb", FOUR, 26, 5),
        ("rtx-pro-6000-blackwell-96gb", PRO_FOUR, 26, 5),
    ],
)
def test_the_number_of_layouts_is_the_published_one(
    model: str, names: tuple[str, ...], valid: int, maximal: int
) -> None:
    where = device(model, names)

    found = list(layouts(where))

    assert len(found) + 1 == valid  # the published number counts the empty layout
    assert len(maximal_layouts(where)) == maximal


@pytest.mark.parametrize("model", SLICED)
def test_layouts_agree_with_brute_force_on_every_board(model: str) -> None:
    where = device(model)

    found = list(layouts(where))

    assert len(found) == len(set(map(frozenset, found)))
    assert {frozenset(), *map(frozenset, found)} == brute_force_layouts(where)


@pytest.mark.parametrize("model", SLICED)
def test_the_last_partition_of_a_layout_can_always_be_made_beside_the_others(model: str) -> None:
    """So every layout is reached from any part of it, in any order, while what lives there stays."""
    where = device(model)

    blocked = [
        (layout, last)
        for layout in layouts(where)
        for last in layout
        if last not in legal_placements(where, tuple(one for one in layout if one != last))
    ]

    assert blocked == []


def test_media_profile_stands_once_per_board() -> None:
    where = device("h100-80gb")

    assert not is_legal(where, (("1g.10gb+me", 0), ("1g.10gb+me", 1)))
    assert ("1g.10gb+me", 1) not in legal_placements(where, (("1g.10gb+me", 0),))


def test_media_engines_go_to_one_partition_whatever_its_size() -> None:
    where = device("a30-24gb")

    assert not is_legal(where, (("1g.6gb+me", 0), ("2g.12gb+me", 2)))
    assert is_legal(where, (("1g.6gb+me", 0), ("2g.12gb", 2)))


def test_a_layout_shows_what_it_strands() -> None:
    where = device("h100-80gb", SEVEN)

    seven = stranded(where, tuple(("1g.10gb", s) for s in range(7)))
    pair = stranded(where, (("3g.40gb", 4),))

    assert (seven.free_slices, seven.unusable_slices, seven.share_milli) == (1, 1, 1000 - 7 * 125)
    assert (pair.free_slices, pair.unusable_slices, pair.memory_milli) == (4, 0, 500)


@pytest.mark.parametrize(
    ("model", "layout", "sm_milli"),
    [
        ("a100-80gb", [("1g.10gb", start) for start in range(7)], 93),
        ("h100-80gb", [("1g.10gb", start) for start in range(7)], 152),
        ("h100-80gb", [("4g.40gb", 0), ("3g.40gb", 4)], 61),
        ("rtx-pro-6000-blackwell-96gb", [("1g.24gb", start) for start in (0, 3, 6, 9)], 21),
    ],
)
def test_multiprocessors_left_idle_are_the_published_ones(
    model: str, layout: list[tuple[str, int]], sm_milli: int
) -> None:
    left = stranded(device(model), tuple(layout), multiprocessors(model))

    assert left.sm_milli == sm_milli


def test_multiprocessors_nobody_knows_stay_unknown() -> None:
    left = stranded(device("b200-180gb"), (("1g.23gb", 0),), multiprocessors("b200-180gb"))

    assert (left.sm_count, left.sm_milli) == (None, None)


def test_a_slice_that_only_a_used_up_profile_could_cover_is_unusable() -> None:
    where = device("a30-24gb", ("1g.6gb+me",))

    left = stranded(where, (("1g.6gb+me", 0),))

    assert (left.free_slices, left.unusable_slices) == (3, 3)


ONES = tuple(("1g.10gb", start) for start in range(7))
HALVES = (("4g.40gb", 0), ("3g.40gb", 4))


def test_an_idle_board_is_cut_anew_for_a_slice_that_its_layout_lacks(cluster: Cluster) -> None:
    idle = [device("h100-80gb", SEVEN, id=1, layout=ONES)]
    waiting = [cluster.request("half", "3g.40gb")]

    (change,) = repartition(idle, waiting)

    assert change.device_id == 1
    assert ("3g.40gb", 4) in change.layout
    assert set(ONES[:4]) <= set(change.layout)


def test_a_new_layout_is_legal_and_full(cluster: Cluster) -> None:
    bare = device("h100-80gb")
    idle = [device("h100-80gb", id=1, layout=HALVES)]
    waiting = [cluster.request("a", "1g.10gb"), cluster.request("b", "2g.20gb")]

    (change,) = repartition(idle, waiting)

    assert is_legal(bare, change.layout)
    assert legal_placements(bare, change.layout) == ()


def test_no_board_is_cut_when_pinned_positions_suffice(cluster: Cluster) -> None:
    idle = [device("h100-80gb", SEVEN, id=1, layout=ONES), device("h100-80gb", SEVEN, id=2, layout=HALVES)]
    waiting = [cluster.request("half", "3g.40gb"), cluster.request("one", "1g.10gb")]

    assert repartition(idle, waiting) == ()


def test_one_new_layout_serves_several_claims_before_another_board_is_cut(cluster: Cluster) -> None:
    idle = [device("h100-80gb", SEVEN, id=number, layout=ONES) for number in (1, 2)]
    waiting = [cluster.request("a", "3g.40gb"), cluster.request("b", "4g.40gb")]

    assert repartition(idle, waiting) == (Repartition(1, HALVES),)


def test_units_of_a_gang_are_cut_on_one_node_or_not_at_all(cluster: Cluster) -> None:
    idle = [
        device("h100-80gb", SEVEN, id=1, node_id=1, layout=ONES),
        device("h100-80gb", SEVEN, id=2, node_id=2, layout=ONES),
        device("h100-80gb", SEVEN, id=3, node_id=2, layout=ONES),
    ]

    pair = repartition(idle, [cluster.request("pair", "7g.80gb", count=2)])
    trio = repartition(idle, [cluster.request("trio", "7g.80gb", count=3)])

    assert [change.device_id for change in pair] == [2, 3]
    assert trio == ()


def test_a_board_with_too_few_pinned_positions_is_cut_for_all_units(cluster: Cluster) -> None:
    layout = (("1g.10gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))
    idle = [device("h100-80gb", SEVEN, id=1, layout=layout)]

    (change,) = repartition(idle, [cluster.request("five", "1g.10gb", count=5)])

    assert sum(1 for name, _ in change.layout if name == "1g.10gb") >= 5


def test_boards_without_a_pinned_layout_and_other_modes_are_left_alone(cluster: Cluster) -> None:
    idle = [device("h100-80gb", SEVEN, id=1), device("h100-80gb", SEVEN, id=2, layout=ONES)]

    assert repartition(idle, [cluster.request("whole"), cluster.request("nine", "9g.90gb")]) == ()
    assert repartition(idle[:1], [cluster.request("half", "3g.40gb")]) == ()
