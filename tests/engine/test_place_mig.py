"""The rule for MIG slices: which board, which start, and that nothing is refused that has a place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.board import Board, by_node
from scheduler.engine.geometry import geometry_of
from scheduler.engine.layouts import is_legal
from scheduler.engine.model import Held, PolicyRules
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import Groups
from scheduler.engine.place.mig import HeldPeriod, least_loss, place_mig, spread
from scheduler.engine.shape import Shape, shape_of
from tests.engine.builder import HOUR, NOON, Cluster, device

SIZES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
BEGIN = NOON.timestamp()


def asked(cluster: Cluster, flavor: str, count: int = 1) -> tuple[Shape, Groups]:
    """The shape of a request and the boards it may go to."""
    room = Occupancy.from_snapshot(cluster.snapshot(), PolicyRules())
    shape = shape_of(cluster.claim(99, flavor, count), PolicyRules())
    return shape, room.groups(shape.kind)


def place(cluster: Cluster, flavor: str, count: int = 1, hours: float | None = None) -> list[tuple[int, int]]:
    """The (device, start) pairs that the rule chooses, with or without knowing for how long."""
    shape, groups = asked(cluster, flavor, count)
    term = None if hours is None else HeldPeriod(BEGIN, BEGIN + hours * HOUR)
    return [(board.device.id, start) for board, start in place_mig(shape, groups, term) or ()]


def test_a_small_slice_fills_a_gap_instead_of_breaking_a_half(cluster: Cluster) -> None:
    cluster.node("a", devices=3).hold(1, "4g.40gb", 0).hold(2, "3g.40gb", 0).hold(2, "1g.10gb", 4)

    assert place(cluster, "1g.10gb") == [(3, 5)]


def test_a_board_that_stays_whole_is_worth_more_than_one_in_use(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(1, "1g.10gb", 6)

    assert place(cluster, "3g.40gb")[0][0] == 2


def test_three_slices_leave_the_place_of_a_four(cluster: Cluster) -> None:
    cluster.node("a")

    assert place(cluster, "3g.40gb") == [(1, 4)]
    assert place(cluster, "3g.40gb", hours=1) == [(1, 4)]


def test_a_short_slice_goes_beside_one_that_outlasts_it(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, "4g.40gb", 0, hours=1).hold(1, "4g.40gb", 0, hours=9)

    assert place(cluster, "3g.40gb", hours=8) == [(2, 4)]


def test_a_long_slice_starts_a_board_that_will_be_free_no_sooner_elsewhere(cluster: Cluster) -> None:
    """Beside the short neighbour it would keep a second board broken for hours; beside the long one it does not."""
    cluster.node("a", devices=3)
    cluster.hold(1, "1g.10gb", 6, team="vision", hours=0.5, lease=-1)
    cluster.hold(2, "1g.10gb", 6, team="vision", hours=20, lease=-1)

    assert place(cluster, "1g.10gb", hours=20)[0][0] == 2


def test_the_fullest_of_equal_boards_is_taken_with_and_without_durations(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, "1g.10gb", 0).hold(1, "4g.40gb", 0)

    assert place(cluster, "3g.40gb") == [(2, 4)]
    assert place(cluster, "3g.40gb", hours=1) == [(2, 4)]


def test_a_slice_that_should_be_gone_counts_as_gone_soon_but_is_never_overlapped(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "4g.40gb", 0, hours=-1)

    assert place(cluster, "3g.40gb", hours=1) == [(1, 4)]
    assert place(cluster, "4g.40gb", hours=1) == []


def test_units_of_one_claim_stay_on_one_node(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "4g.40gb", 0)
    cluster.node("b", devices=2).hold(0, "1g.10gb", 0)

    found = place(cluster, "3g.40gb", count=3)

    assert sorted(found) == [(2, 4), (3, 0), (3, 4)]


def test_the_maximum_of_a_profile_bounds_the_units(cluster: Cluster) -> None:
    cluster.node("a", devices=2)

    assert len(place(cluster, "1g.10gb+me", count=2)) == 2
    assert place(cluster, "1g.10gb+me", count=3) == []


@pytest.mark.parametrize("rule", [least_loss, spread, place_mig])
def test_every_rule_gives_up_only_where_nothing_fits(cluster: Cluster, rule: object) -> None:
    cluster.node("a", devices=2).hold(0, "1g.10gb", 0).hold(1, "3g.40gb", 4)

    shape, groups = asked(cluster, "4g.40gb")
    whole, all_groups = asked(cluster, "7g.80gb")

    assert [(b.device.id, s) for b, s in rule(shape, groups)] == [(2, 0)]  # type: ignore[operator]
    assert rule(whole, all_groups) is None  # type: ignore[operator]


def test_many_boards_are_not_all_looked_at_once_a_perfect_fit_was_found(cluster: Cluster) -> None:
    gap = cluster.node("a", devices=8).hold(3, "4g.40gb", 0)
    for number in range(20):
        cluster.node(f"node-{number}", devices=8)

    assert gap.devices[3] == 4
    assert place(cluster, "3g.40gb") == [(4, 4)]
    assert place(cluster, "3g.40gb", hours=1) == [(4, 4)]


@st.composite
def occupied(draw: st.DrawFn) -> tuple[Cluster, str, int]:
    """Two nodes with random live slices, and a request."""
    cluster = Cluster()
    for name in ("a", "b"):
        boards = draw(st.integers(1, 3))
        words = cluster.node(name, devices=boards, profiles=SIZES)
        for at in range(boards):
            held: tuple[tuple[str, int], ...] = ()
            for size in draw(st.lists(st.sampled_from(SIZES), max_size=4)):
                starts = geometry_of(device("h100-80gb", SIZES)).profiles[size].starts
                one = (size, draw(st.sampled_from(starts)))
                if is_legal(device("h100-80gb", SIZES), (*held, one)):
                    held = (*held, one)
                    words.hold(at, size, one[1], hours=draw(st.integers(1, 9)))
    return cluster, draw(st.sampled_from(SIZES)), draw(st.integers(1, 4))


def can_be_placed(boards: tuple[Board, ...], profile: str, count: int) -> bool:
    """Whether so many units fit on the boards of one node, by trying every set of starts on each board."""
    most = 0
    for board in boards:
        spans = board.geometry.spans[profile]
        best = 0
        for chosen in product((False, True), repeat=len(spans)):
            mask, units = board.mask, 0
            for take, span in zip(chosen, spans, strict=True):
                if take and not span.bits & mask:
                    mask |= span.bits
                    units += 1
            best = max(best, units)
        room = board.geometry.profiles[profile].max_instances - board.counts.get(profile, 0)
        most += min(best, room)
    return most >= count


@settings(max_examples=150, deadline=None)
@given(occupied(), st.one_of(st.none(), st.integers(1, 9)))
def test_a_place_is_found_whenever_there_is_one_and_never_overlaps(
    case: tuple[Cluster, str, int], hours: int | None
) -> None:
    cluster, profile, count = case
    shape, groups = asked(cluster, profile, count)
    term = None if hours is None else HeldPeriod(BEGIN, BEGIN + hours * HOUR)

    spots = place_mig(shape, groups, term)

    nodes = by_node(board for boards in groups for board in boards)
    assert (spots is not None) == any(can_be_placed(boards, profile, count) for boards in nodes)
    if spots is not None:
        assert len(spots) == count
        assert len({board.node.id for board, _ in spots}) == 1
        for board in {board for board, _ in spots}:
            live = tuple((held.profile, held.start) for held in board.held)
            new = tuple((profile, start) for where, start in spots if where is board)
            assert is_legal(board.device, live + new)
        assert place_mig(shape, groups, term) == spots


def test_a_board_on_which_two_hold_the_same_slices_gives_back_one_after_the_other() -> None:
    """After a fault a lease of a silent node and a partition that nobody knows may stand at one place."""
    cluster = Cluster()
    cluster.node("a", "h100-80gb", devices=1)
    (board,) = Occupancy.from_snapshot(cluster.snapshot(), PolicyRules()).boards
    first = Held(board.device.id, 0, 4, "mig", 1, 7, NOON + timedelta(hours=1), 500, profile="3g.40gb")
    second = replace(first, lease_id=None, team_id=0, until=NOON + timedelta(hours=2))
    board.put(first)
    board.put(second)

    assert board.drop(first)
    assert board.mask == 0b1111, "what the other holds is not free"
    assert board.drop(second)
    assert (board.mask, board.use, board.counts) == (0, "", {})
