"""MPS is one fault domain: a board that serves it holds shares of one team, in every room a turn looks into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import combinations
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine import Ended, EngineState, forecast, plan
from scheduler.engine.board import SEVERAL
from scheduler.engine.model import Booking, Claim, Held, PolicyRules, Snapshot
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.policy import Backfill
from tests.engine.builder import NOON, Cluster
from tests.engine.playing import play
from tests.engine.test_properties import few

OPEN = PolicyRules(share_across_teams=True)
OPEN_TO_ALL = PolicyRules(share_across_teams=True, mps_across_teams=True)
SHARE = "mps 250 8000"
Hold = tuple[int, int, datetime, datetime]


def test_teams_that_may_share_boards_still_do_not_meet_under_mps() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb").hold(0, SHARE, team="vision", hours=2)
    cluster.request("ours", SHARE, team="vision")
    cluster.request("theirs", SHARE, team="language")

    turn = cluster.plan()

    assert list(turn.grants) == ["ours"]
    assert turn.codes("theirs")[0] == "mps_of_other_teams"


def test_a_policy_may_let_teams_meet_under_mps_too() -> None:
    cluster = Cluster(OPEN_TO_ALL)
    cluster.node("a", "l40s-48gb").hold(0, SHARE, team="vision")
    cluster.request("theirs", SHARE, team="language")

    assert list(cluster.plan().grants) == ["theirs"]


def test_mps_across_teams_says_nothing_where_teams_may_not_share_boards() -> None:
    cluster = Cluster(PolicyRules(mps_across_teams=True))
    cluster.node("a", "l40s-48gb").hold(0, SHARE, team="vision")
    cluster.request("theirs", SHARE, team="language")

    assert cluster.plan().grants == {}


@pytest.mark.parametrize("mode", ["memlimit", "timeslice"])
def test_other_shared_modes_stay_open_to_all_teams(mode: str) -> None:
    cluster = Cluster(OPEN)
    words = cluster.node("a", "l40s-48gb", modes=frozenset({mode}))
    words.hold(0, f"{mode} 250 8000", team="vision")
    cluster.request("theirs", f"{mode} 250 8000", team="language")

    assert list(cluster.plan().grants) == ["theirs"]


def test_the_reason_names_no_team_and_says_when_the_first_board_is_free() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb", devices=2).hold(0, SHARE, hours=2).hold(1, SHARE, hours=5)
    cluster.request("theirs", SHARE, team="language")

    reason = cluster.plan().reason("theirs", "mps_of_other_teams")

    assert reason.detail == {"boards": 2, "next_end": (NOON + timedelta(hours=2)).isoformat()}


def test_boards_without_room_are_no_reason_to_name_other_teams() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb").hold(0, "mps 900 8000")
    cluster.request("theirs", SHARE, team="language")

    assert "mps_of_other_teams" not in cluster.plan().codes("theirs")


def test_what_is_offered_instead_is_never_a_smaller_share_of_another_teams_board() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb").hold(0, SHARE, hours=30)
    wanted = cluster.claim(9, "mps 900 8000", team="language")
    smaller = cluster.claim(1, SHARE, team="language")
    whole = cluster.claim(2, "memlimit 100 1000", team="language")
    cluster.node("b", "l40s-48gb", modes=frozenset({"memlimit"}))

    assert cluster.offers(wanted, smaller, whole)[0] == 2


def test_a_forecast_starts_another_team_when_the_last_share_ends() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb").hold(0, SHARE, hours=1).hold(0, SHARE, hours=3)

    assert cluster.start_of(cluster.request("theirs", SHARE, team="language")) == 3
    assert cluster.start_of(cluster.request("ours", SHARE, team="vision")) == 0


def test_a_share_that_would_still_run_when_another_teams_booking_begins_waits() -> None:
    cluster = Cluster(OPEN)
    cluster.node("a", "l40s-48gb")
    cluster.team("vision")
    booked = Held(1, 0, 0, "mps", cluster.team_id("vision"), 7, NOON + timedelta(hours=4), 250, 8000)
    short, long = (
        cluster.request("short", SHARE, team="language", hours=2),
        cluster.request("long", SHARE, team="language", hours=3),
    )
    snapshot = replace(cluster.snapshot(), bookings=(Booking(NOON + timedelta(hours=2), booked),))

    found = plan(snapshot, OPEN)

    assert [grant.claim_id for grant in found.grants] == [short.id]
    starts = forecast(snapshot, OPEN, (long,))
    assert starts[long.id].starts_at == NOON + timedelta(hours=4)


def mixed_board(*, hours: tuple[int, int] = (1, 2)) -> Cluster:
    """A board on which older rules let two teams meet; vision opened it."""
    cluster = Cluster(OPEN_TO_ALL)
    words = cluster.node("a", "l40s-48gb")
    words.hold(0, SHARE, team="vision", hours=hours[0]).hold(0, SHARE, team="language", hours=hours[1])
    cluster.policy = OPEN
    return cluster


def test_nobody_joins_a_board_on_which_older_rules_let_teams_meet() -> None:
    cluster = mixed_board()
    for team in ("vision", "language", "robotics"):
        cluster.request(team, SHARE, team=team)

    turn = cluster.plan()

    assert turn.grants == {}
    assert all(turn.codes(team)[0] == "mps_of_other_teams" for team in ("vision", "language", "robotics"))


def test_a_board_belongs_to_the_team_whose_shares_are_left_whoever_opened_it() -> None:
    cluster = mixed_board()
    state = EngineState.from_snapshot(cluster.snapshot(), OPEN)
    (board,) = state.boards
    assert board.team_id == SEVERAL

    state.apply(Ended((next(h for h in board.held if h.team_id == 1 and not h.is_host),)))

    assert board.team_id == cluster.team_id("language")
    opened_by_the_other = [h for h in cluster.held if h.is_host or h.team_id == 2]
    left = EngineState.from_snapshot(replace(cluster.snapshot(), held=tuple(opened_by_the_other)), OPEN)
    assert left.boards[0].team_id == cluster.team_id("language")


def test_forecasts_know_that_a_mixed_board_opens_to_the_team_that_stays() -> None:
    cluster = mixed_board()

    assert cluster.start_of(cluster.request("stays", SHARE, team="language")) == 1
    assert cluster.start_of(cluster.request("goes", SHARE, team="vision")) == 2


@st.composite
def pictures(draw: st.DrawFn) -> tuple[Snapshot, PolicyRules]:
    """A few boards that offer MPS and memory limits, three teams, claims of now and bookings."""
    backfill = draw(st.sampled_from(get_args(Backfill)))
    rule = draw(st.sampled_from(sorted(POLICIES)))
    open_ = draw(st.booleans())
    policy = PolicyRules(
        place=rule,
        backfill=backfill,
        depth=draw(st.integers(1, 3)),
        reserve_after_s=0,
        share_across_teams=open_,
    )
    cluster = Cluster(policy)
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        cluster.node(name, "l40s-48gb", draw(st.integers(1, 2)), max_clients=3)
    for team in ("vision", "language", "robotics"):
        cluster.team(team, ceiling=draw(st.sampled_from([None, None, 600])))
    for number in range(draw(st.integers(2, 10))):
        later = draw(st.sampled_from([None, None, None, 1, 2, 4]))
        cluster.request(
            f"r{number}",
            draw(
                st.sampled_from(
                    ["mps 300 9000", "mps 300 9000", "mps 500 20000", "memlimit 300 9000", "whole"]
                )
            ),
            draw(st.sampled_from([1, 1, 2])),
            team=draw(st.sampled_from(["vision", "language", "robotics"])),
            hours=draw(st.sampled_from([1, 2, 3])),
            queued_s=-draw(st.integers(0, 3)),
            starts_at=None if later is None else NOON + timedelta(hours=later),
        )
    return cluster.snapshot(), policy


def holds(snapshot: Snapshot) -> Iterable[Hold]:
    """Device, team and time of every MPS share that is held now or booked."""
    for held in snapshot.held:
        if held.mode == "mps" and not held.is_host:
            yield held.device_id, held.team_id, snapshot.taken_at, held.until
    for one in snapshot.bookings:
        if one.held.mode == "mps" and not one.held.is_host:
            yield one.held.device_id, one.held.team_id, one.starts_at, one.held.until


def strangers(found: Iterable[Hold]) -> list[tuple[Hold, Hold]]:
    """Pairs of shares of different teams that are on one board at the same time."""
    pairs = combinations(found, 2)
    return [(a, b) for a, b in pairs if a[0] == b[0] and a[1] != b[1] and a[2] < b[3] and b[2] < a[3]]


@settings(few, max_examples=60)
@given(pictures())
def test_no_turn_ever_mixes_teams_under_mps_and_forecasts_say_what_turns_do(
    picture: tuple[Snapshot, PolicyRules],
) -> None:
    snapshot, policy = picture

    played = play(snapshot, policy)

    for seen, found in played.turns:
        assert strangers(holds(seen)) == []
        waiting = tuple(claim for claim in seen.queue if not is_later(claim, seen.taken_at))
        starts = forecast(seen, policy, waiting)
        now = {claim_id for claim_id, one in starts.items() if one.starts_at == seen.taken_at}
        assert now == {grant.claim_id for grant in found.grants if grant.starts_at is None}


def is_later(claim: Claim, now: datetime) -> bool:
    return claim.starts_at is not None and claim.starts_at > now
