"""Who must go so that somebody else can start, and whose place is kept until they are gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.engine import plan
from scheduler.engine.events import Ended, held_by
from scheduler.engine.model import Booking, Held, Outage
from scheduler.engine.policy import PolicyRules, Preempting
from scheduler.engine.state import EngineState
from tests.engine.builder import NOON
from tests.engine.preempting import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Preemptible leases


def test_a_preemptible_lease_goes_for_a_request_that_may_not_be_preempted(stage: Stage) -> None:
    stage.node("a")
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    one = stage.request("one")

    found = stage.turn()

    assert [(p.lease_id, p.claim_id, p.why) for p in found.preemptions] == [(lease, one.id, "priority")]
    assert [r.code for r in found.waits[0].reasons] == ["room_is_made", "no_capacity"]
    assert found.waits[0].reasons[0].detail["leases"] == [lease]


def test_a_preemptible_request_preempts_nobody_of_equal_standing_but_those_below_it(stage: Stage) -> None:
    stage.node("a")
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    stage.request("equal", is_preemptible=True)
    assert stage.told() == {}

    above = stage.request("above", is_preemptible=True, priority=1)

    assert stage.told() == {lease: (above.id, "priority")}


def test_a_higher_lease_stays_and_one_that_never_agreed_too(stage: Stage) -> None:
    stage.node("a", devices=2)
    stage.lease((1, "whole", 0), is_preemptible=True, priority=10)
    stage.lease((2, "whole", 0))
    stage.request("one")

    assert stage.told() == {}


def by_score(stage: Stage, **more: object) -> Stage:
    """Let scores decide among leases that agreed, by what people ask for as long as nothing was learned."""
    rules = Preempting(by_score=True, **more)  # type: ignore[arg-type]
    stage.policy = PolicyRules(order="default", preempting=rules)
    return stage


def test_a_clearly_better_score_takes_from_who_agreed_where_the_policy_compares_scores(stage: Stage) -> None:
    stage.node("a")
    lease = stage.lease((1, "whole", 0), hours=10, is_preemptible=True, work="training")
    stage.request("short", hours=0.5, is_preemptible=True, queued_s=0)
    assert stage.told() == {}

    assert stage.told_by(by_score(stage)) == {lease: "priority"}
    assert stage.told_by(by_score(stage, factor=100.0)) == {}


@pytest.mark.parametrize(
    ("lease", "request_more"),
    [
        ({"is_preemptible": False}, {}),
        ({"work": "interactive"}, {}),
        ({"priority": 1}, {}),
        ({"evictions": 20}, {}),
        ({"ran_s": 2000, "evictions": 3}, {}),  # it must run four times the least time now
        ({}, {"yields_to": frozenset({1000})}),
    ],
)
def test_scores_never_take_from_those(
    stage: Stage, lease: dict[str, object], request_more: dict[str, object]
) -> None:
    stage.node("a")
    stage.lease((1, "whole", 0), hours=100, **{"is_preemptible": True, "work": "training", **lease})  # type: ignore[arg-type]
    stage.request("short", **{"hours": 0.2, "is_preemptible": True, **request_more})  # type: ignore[arg-type]

    assert by_score(stage).told() == {}


def test_interactive_leases_go_for_better_scores_where_the_policy_says_so(stage: Stage) -> None:
    stage.node("a")
    lease = stage.lease((1, "whole", 0), hours=100, is_preemptible=True, work="interactive")
    stage.request("short", hours=0.2, is_preemptible=True)

    assert stage.told_by(by_score(stage, interactive=True)) == {lease: "priority"}


def test_by_score_the_worst_goes_and_who_is_not_needed_is_spared(stage: Stage) -> None:
    stage.node("a", devices=4)
    training = {"is_preemptible": True, "work": "training"}
    stage.lease((1, "whole", 0), hours=3, **training)
    wide = stage.lease((2, "whole", 0), (3, "whole", 0), hours=200, **training)
    stage.lease((4, "whole", 0), hours=150, **training)
    stage.request("short", count=2, hours=0.2, is_preemptible=True)

    assert stage.told_by(by_score(stage)) == {wide: "priority"}


def test_a_kept_room_gives_the_same_plan_and_is_left_with_its_grants(stage: Stage) -> None:
    stage.node("a", devices=3)
    stage.lease((1, "whole", 0), hours=100, is_preemptible=True, work="training")
    stage.request("fits", count=2, hours=1)
    stage.request("short", hours=0.2, is_preemptible=True)
    by_score(stage)
    snapshot = stage.snapshot()
    room = EngineState.from_snapshot(snapshot, stage.policy)

    found = plan(snapshot, stage.policy, room, explains=False)

    plain = plan(snapshot, stage.policy)
    assert (found.grants, found.preemptions) == (plain.grants, plain.preemptions)
    assert len(found.preemptions) == 1
    assert [bool(board.use) for board in room.boards] == [True, True, False]
    room.apply(Ended(held_by(found.grants[0], NOON)))
    again = plan(snapshot, stage.policy, room, explains=False)
    assert (again.grants, again.preemptions) == (plain.grants, plain.preemptions)


def test_nobody_goes_where_that_would_not_make_room(stage: Stage) -> None:
    stage.node("a", devices=2)
    stage.lease((1, "whole", 0), is_preemptible=True)
    stage.lease((2, "whole", 0))
    stage.request("two together", count=2)

    assert stage.told() == {}


def test_no_more_go_than_are_needed_and_those_that_lose_least(stage: Stage) -> None:
    stage.node("a", devices=3)
    stage.lease((1, "whole", 0), is_preemptible=True, ran_s=7200)
    young = stage.lease((2, "whole", 0), is_preemptible=True, ran_s=900)
    younger = stage.lease((3, "whole", 0), is_preemptible=True, ran_s=800)
    two = stage.request("two", count=2)

    assert stage.told() == {young: (two.id, "priority"), younger: (two.id, "priority")}


def test_a_small_lease_is_spared_when_a_large_one_must_go_anyway(stage: Stage) -> None:
    stage.node("a", devices=2)
    stage.lease((1, "1g.10gb", 0), is_preemptible=True, ran_s=700)
    large = stage.lease((1, "4g.40gb", 4), (2, "whole", 0), is_preemptible=True, ran_s=7200)
    one = stage.request("one")

    assert stage.told() == {large: (one.id, "priority")}


def test_slices_go_until_the_wanted_slice_has_a_legal_position(stage: Stage) -> None:
    stage.node("a")
    first = stage.lease((1, "1g.10gb", 0), is_preemptible=True, ran_s=800)
    second = stage.lease((1, "2g.20gb", 2), is_preemptible=True, ran_s=900)
    stage.lease((1, "3g.40gb", 4))
    half = stage.request("half", "3g.40gb")

    assert stage.told() == {first: (half.id, "priority"), second: (half.id, "priority")}


def test_shares_of_a_board_go_with_their_host(stage: Stage) -> None:
    stage.node("a", "l40s-48gb")
    shares = [stage.lease((1, "mps 400 8000", 0), is_preemptible=True) for _ in range(2)]
    whole = stage.request("whole")

    assert stage.told() == dict.fromkeys(shares, (whole.id, "priority"))


def test_one_share_goes_where_one_is_enough(stage: Stage) -> None:
    stage.node("a", "l40s-48gb")
    stage.lease((1, "mps 400 8000", 0), is_preemptible=True, ran_s=5000)
    cheap = stage.lease((1, "mps 400 8000", 0), is_preemptible=True, ran_s=700)
    share = stage.request("share", "mps 500 8000")

    assert stage.told() == {cheap: (share.id, "priority")}


def test_cpu_of_the_node_counts_as_room(stage: Stage) -> None:
    stage.node("a", devices=2, host={"cpu_milli": 8000, "memory_mib": 64_000})
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    stage.held = [replace(h, cpu_milli=6000) for h in stage.held]
    one = stage.request("one", cpu_milli=4000)

    assert stage.told() == {lease: (one.id, "priority")}


def test_a_gang_over_nodes_takes_the_nodes_that_cost_least(stage: Stage) -> None:
    for name in "abc":
        stage.node(name, devices=2)
    costly = stage.lease((1, "whole", 0), (2, "whole", 0), is_preemptible=True, ran_s=9000)
    cheap = stage.lease((3, "whole", 0), is_preemptible=True, ran_s=700)
    mid = stage.lease((5, "whole", 0), (6, "whole", 0), is_preemptible=True, ran_s=1200)
    gang = stage.request("gang", count=2, nodes=2)

    assert stage.told() == {cheap: (gang.id, "priority"), mid: (gang.id, "priority")}
    assert costly not in stage.told()


def test_a_gang_on_any_nodes_takes_what_is_missing(stage: Stage) -> None:
    for name in "ab":
        stage.node(name, devices=2)
    stage.lease((1, "whole", 0))
    first = stage.lease((2, "whole", 0), is_preemptible=True, ran_s=700)
    stage.lease((3, "whole", 0), is_preemptible=True, ran_s=9000)
    gang = stage.request("gang", count=2, nodes=0)

    assert stage.told() == {first: (gang.id, "priority")}


def test_parts_of_a_gang_go_together(stage: Stage) -> None:
    for name in "ab":
        stage.node(name)
    parts = [stage.lease((device, "whole", 0), is_preemptible=True, claim_id=7) for device in (1, 2)]
    one = stage.request("one", priority=1)

    assert stage.told() == dict.fromkeys(parts, (one.id, "priority"))


def test_what_a_lease_has_grown_by_goes_first_and_for_anybody(stage: Stage) -> None:
    stage.node("a", devices=3)
    stage.lease((1, "whole", 0), claim_id=7, priority=10)
    grown = stage.lease((2, "whole", 0), claim_id=7, is_extra=True, is_preemptible=True, priority=10, ran_s=5)
    stage.lease((3, "whole", 0), is_preemptible=True, ran_s=700)
    low = stage.request("low", priority=-10)

    assert stage.told() == {grown: (low.id, "elastic")}


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ({"ran_s": 599}, Preempting()),
        ({"evictions": 20}, Preempting()),
        ({"hours": 1 / 60}, Preempting()),
        ({}, Preempting(preemptible=False)),
    ],
    ids=["young", "preempted often enough", "ends within the grace anyway", "switched off"],
)
def test_leases_are_left_alone(stage: Stage, more: dict[str, object], rules: Preempting) -> None:
    stage.policy = PolicyRules(preempting=rules)
    stage.node("a")
    stage.lease((1, "whole", 0), is_preemptible=True, **more)  # type: ignore[arg-type]
    stage.request("one")

    assert stage.told() == {}


def test_nobody_takes_from_the_request_it_was_preempted_for(stage: Stage) -> None:
    stage.node("a")
    stage.lease((1, "whole", 0), is_preemptible=True, claim_id=7)
    stage.request("loser", priority=5, yields_to=frozenset({7}))

    assert stage.told() == {}


def test_own_quota_is_made_room_in_as_well(stage: Stage) -> None:
    stage.team("vision", ceiling=1000)
    stage.node("a", devices=2)
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    urgent = stage.request("urgent", priority=5)

    assert stage.told() == {lease: (urgent.id, "priority")}


def test_two_requests_do_not_count_on_the_same_lease(stage: Stage) -> None:
    stage.node("a", devices=2)
    leases = [stage.lease((device, "whole", 0), is_preemptible=True) for device in (1, 2)]
    one, two = stage.request("one"), stage.request("two")
    stage.request("three")

    assert sorted(stage.told().values()) == [(one.id, "priority"), (two.id, "priority")]
    assert set(stage.told()) == set(leases)


# Guarantees


def borrowed(stage: Stage, lent: int = 1) -> int:
    """vision is guaranteed nothing and runs what language, guaranteed two, does not use; returns a lease."""
    stage.share("vision", 0)
    stage.share("language", 2000)
    stage.node("a", devices=4)
    leases = [stage.lease((device, "whole", 0), team="vision") for device in range(1, lent + 1)]
    return leases[0]


def test_a_team_takes_back_what_was_borrowed_of_its_guarantee_with_boards_idle(stage: Stage) -> None:
    lease = borrowed(stage, lent=2)
    mine = stage.request("mine", team="language")

    assert stage.told() == {lease: (mine.id, "reclaim")}


def test_what_is_above_the_own_guarantee_takes_nothing_back(stage: Stage) -> None:
    borrowed(stage, lent=2)
    stage.request("more than mine", team="language", count=3)

    assert stage.told() == {}


def test_a_team_is_left_its_guarantee(stage: Stage) -> None:
    stage.share("vision", 1000)
    stage.share("language", 1000)
    stage.node("a", devices=2)
    stage.lease(
        (1, "whole", 0), (2, "whole", 0), team="vision"
    )  # one lease of two boards: half of it is owed
    stage.request("mine", team="language")

    assert stage.told() == {}


def test_a_preemptible_lease_inside_a_guarantee_is_not_taken_by_others(stage: Stage) -> None:
    stage.share("vision", 1000)
    stage.share("language", 1000)
    stage.node("a")
    stage.lease((1, "whole", 0), team="vision", is_preemptible=True)
    stage.request("other", team="language", priority=10)
    assert stage.told() == {}

    own = stage.request("own", team="vision", priority=10)

    assert stage.told() == {100: (own.id, "priority")}


def test_reclaiming_can_be_switched_off(stage: Stage) -> None:
    stage.policy = PolicyRules(preempting=Preempting(borrowed=False))
    borrowed(stage, lent=2)
    stage.request("mine", team="language")

    assert stage.told() == {}


# Places


def test_the_place_is_kept_until_all_who_were_told_are_gone(stage: Stage) -> None:
    stage.node("a", devices=2)
    leases = [stage.lease((device, "whole", 0), is_preemptible=True) for device in (1, 2)]
    gang = stage.request("gang", count=2)
    stage.request("quick", priority=10)
    for lease in leases:
        stage.tell(lease, gang.id)
    stage.end(leases[0])

    found = stage.turn()

    assert (found.grants, found.preemptions, found.spared) == ((), (), ())
    assert [(w.claim_id, w.position, w.reasons[0].code) for w in found.waits] == [
        (gang.id, 1, "room_is_made"),
        (2, 2, "no_capacity"),
    ]


def test_whoever_is_owed_a_place_starts_before_all_others(stage: Stage) -> None:
    stage.node("a")
    stage.request("first", priority=10)
    owed = stage.request("owed", is_owed=True)

    found = stage.turn()

    assert [grant.claim_id for grant in found.grants] == [owed.id]


def test_one_that_starts_elsewhere_takes_nobody_elses_place(stage: Stage) -> None:
    stage.node("a", devices=2)
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    owed = stage.request("owed")
    other = stage.request("other")
    stage.tell(lease, owed.id)

    found = stage.turn()

    assert [grant.claim_id for grant in found.grants] == [owed.id]
    assert found.waits[0].claim_id == other.id  # the rows spare the lease once the grant stands


@pytest.mark.parametrize("flavor", ["1g.10gb", "mps 100 1000", "whole"])
def test_nobody_slips_into_a_place_that_is_half_free(stage: Stage, flavor: str) -> None:
    stage.node("a", "h100-80gb")
    leases = [stage.lease((1, "1g.10gb", at), is_preemptible=True) for at in (0, 1)]
    whole = stage.request("whole")
    for lease in leases:
        stage.tell(lease, whole.id)
    stage.end(leases[0])
    stage.request("slips in", flavor, priority=10)

    assert stage.turn().grants == ()


def test_nobody_slips_into_a_shared_board_that_is_half_free(stage: Stage) -> None:
    stage.node("a", "l40s-48gb")
    leases = [stage.lease((1, "mps 400 8000", 0), is_preemptible=True) for _ in range(2)]
    whole = stage.request("whole")
    for lease in leases:
        stage.tell(lease, whole.id)
    stage.end(leases[0])
    stage.request("slips in", "mps 100 1000", priority=10)

    assert stage.turn().grants == ()


def test_quota_is_kept_with_the_place(stage: Stage) -> None:
    lease = borrowed(stage, lent=2)
    mine = stage.request("mine", team="language")
    stage.tell(lease, mine.id)
    stage.request("borrows again", team="vision", priority=10)

    found = stage.turn()

    assert found.grants == ()
    assert [w.reasons[0].code for w in found.waits] == ["room_is_made", "cohort_exhausted"]


def test_leases_are_spared_when_the_request_is_withdrawn_or_cannot_have_the_place(stage: Stage) -> None:
    stage.node("a")
    lease = stage.lease((1, "whole", 0), is_preemptible=True)
    stage.tell(lease, 77)
    assert stage.turn().spared == (lease,)

    too_large = stage.request("too large", count=2, nodes=0)
    stage.tell(lease, too_large.id)

    assert stage.turn().spared == (lease,)


# What lies ahead


def test_nobody_goes_for_a_place_that_is_booked_or_under_maintenance_soon(stage: Stage) -> None:
    stage.node("a")
    stage.lease((1, "whole", 0), is_preemptible=True, hours=0.5)
    stage.request("long", hours=4)
    soon = NOON + timedelta(hours=1)
    outage = Outage(1, soon, soon + timedelta(hours=1))
    booking = Booking(soon, Held(1, 0, 8, "exclusive", 9, 55, soon + timedelta(hours=1)))
    snapshot = stage.snapshot()

    assert plan(snapshot, stage.policy).preemptions
    assert not plan(replace(snapshot, outages=(outage,)), stage.policy).preemptions
    assert not plan(replace(snapshot, bookings=(booking,)), stage.policy).preemptions
