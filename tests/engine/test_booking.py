"""Bookings: a claim for a time to come gets its places now, or hears which times near it are free."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from scheduler.engine import forecast, plan
from scheduler.engine.model import Booking, Claim, Outage, Plan, PolicyRules
from tests.engine.builder import NOON, Cluster
from tests.engine.playing import committed


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def book(cluster: Cluster, name: str, starts: float, hours: float = 1, **more: object) -> Claim:
    return cluster.request(name, hours=hours, starts_at=at(starts), **more)  # type: ignore[arg-type]


def decide(cluster: Cluster, *ahead: Booking | Outage) -> Plan:
    snapshot = replace(
        cluster.snapshot(),
        bookings=tuple(one for one in ahead if isinstance(one, Booking)),
        outages=tuple(one for one in ahead if isinstance(one, Outage)),
    )
    return plan(snapshot, cluster.policy)


def refusal(found: Plan, claim: Claim) -> tuple[str, list[datetime]]:
    wait = next(wait for wait in found.waits if wait.claim_id == claim.id)
    assert wait.is_impossible
    reason = wait.reasons[0]
    if not reason.code.startswith("booking"):
        return reason.code, []
    return reason.code, [datetime.fromisoformat(one) for one in reason.detail["nearest"]]


def test_a_booking_gets_its_place_for_its_time_though_the_board_is_busy_now(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=3)
    claim = book(cluster, "later", starts=4, hours=2)

    (grant,) = decide(cluster).grants

    assert (grant.claim_id, grant.starts_at, grant.duration_s) == (claim.id, at(4), 7200)


def test_a_booking_into_a_lease_that_still_runs_is_refused_with_free_times(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=3)
    claim = book(cluster, "later", starts=2, hours=2)

    assert refusal(decide(cluster), claim) == ("booking_taken", [at(3)])


def test_the_free_times_are_on_both_sides_of_what_is_in_the_way(cluster: Cluster) -> None:
    cluster.node("a")
    first = book(cluster, "first", starts=10, hours=4)
    second = book(cluster, "second", starts=12, hours=2)

    found = decide(cluster)

    assert [grant.claim_id for grant in found.grants] == [first.id]
    code, nearest = refusal(found, second)
    assert code == "booking_taken"
    assert at(8) in nearest
    assert at(14) in nearest
    assert len(nearest) <= 3


def test_every_time_that_is_offered_would_be_granted(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=5).hold(1, "3g.40gb", hours=7)
    book(cluster, "first", starts=10, hours=4, count=2)
    second = book(cluster, "second", starts=11, hours=3, count=2)
    first_turn = decide(cluster, Outage(1, at(20), at(24)))
    _, nearest = refusal(first_turn, second)
    after = committed(replace(cluster.snapshot(), outages=(Outage(1, at(20), at(24)),)), first_turn)

    assert nearest
    for start in nearest:
        again = plan(replace(after, queue=(replace(second, starts_at=start),)), cluster.policy)
        assert [grant.starts_at for grant in again.grants] == [start]


def test_a_booking_into_maintenance_is_refused(cluster: Cluster) -> None:
    cluster.node("a")
    claim = book(cluster, "later", starts=4, hours=3)

    code, nearest = refusal(decide(cluster, Outage(1, at(6), at(8))), claim)

    assert code == "booking_taken"
    assert set(nearest) >= {at(3), at(8)}


def test_two_slices_are_booked_beside_each_other_and_a_third_at_another_time(cluster: Cluster) -> None:
    cluster.node("a")
    claims = [cluster.request(f"r{n}", "3g.40gb", starts_at=at(2)) for n in range(3)]

    found = decide(cluster)

    assert sorted(grant.slots[0].start for grant in found.grants) == [0, 4]
    assert refusal(found, claims[2])[1] == [at(1), at(3)]


def test_a_share_is_booked_on_a_board_that_another_team_uses_until_then(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 500 9000", team="vision", hours=2)
    early = cluster.request("early", "mps 500 9000", team="language", starts_at=at(1))
    late = cluster.request("late", "mps 500 9000", team="language", starts_at=at(2))

    found = decide(cluster)

    assert [grant.claim_id for grant in found.grants] == [late.id]
    assert refusal(found, early)[0] == "booking_taken"


def test_a_gang_over_two_nodes_is_booked_whole_or_not_at_all(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=5)
    cluster.node("b", devices=2)
    soon = book(cluster, "soon", starts=4, count=2, nodes=2)
    later = book(cluster, "later", starts=6, count=2, nodes=2)

    found = decide(cluster)

    assert [(grant.claim_id, len(grant.slots)) for grant in found.grants] == [(later.id, 4)]
    assert refusal(found, soon)[0] == "booking_taken"


def test_a_booking_counts_what_the_team_will_use_then_and_not_what_is_over(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000, used=1000)
    cluster.node("a", devices=2).hold(0, hours=3)
    early = book(cluster, "early", starts=2)
    late = book(cluster, "late", starts=3)

    found = decide(cluster)

    assert [grant.claim_id for grant in found.grants] == [late.id]
    code, nearest = refusal(found, early)
    assert code == "booking_above_quota"
    assert nearest == [at(4)]


def test_two_bookings_at_once_do_not_exceed_the_quota_together(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000)
    cluster.node("a", devices=2)
    book(cluster, "one", starts=2)
    two = book(cluster, "two", starts=2.5)

    found = decide(cluster)

    assert len(found.grants) == 1
    assert refusal(found, two)[0] == "booking_above_quota"


def test_a_booking_does_not_take_what_is_promised_to_who_waits(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=2)
    cluster.request("waits", hours=4, queued_s=-3600)
    claim = book(cluster, "later", starts=3, priority=9)

    assert refusal(decide(cluster), claim) == ("booking_taken", [at(6)])


def test_a_booking_made_in_a_turn_is_in_nobodys_way_who_started_in_it(cluster: Cluster) -> None:
    cluster.node("a")
    now = cluster.request("now", hours=3)
    later = book(cluster, "later", starts=2)

    found = decide(cluster)

    assert [grant.claim_id for grant in found.grants] == [now.id]
    assert refusal(found, later)[0] == "booking_taken"


def test_a_booking_whose_time_has_come_starts_as_soon_as_it_can(cluster: Cluster) -> None:
    cluster.node("a")
    claim = book(cluster, "late", starts=-0.1)

    (grant,) = decide(cluster).grants

    assert (grant.claim_id, grant.starts_at) == (claim.id, None)


def test_what_no_board_can_ever_hold_is_not_booked_either(cluster: Cluster) -> None:
    cluster.node("a")
    large = book(cluster, "large", starts=2, count=2)
    far = book(cluster, "far", starts=20 * 366 * 24)

    found = decide(cluster)

    assert not found.grants
    assert refusal(found, large)[0] == "larger_than_any_node"
    assert refusal(found, far)[0] == "malformed"


def test_a_forecast_knows_what_is_booked_and_when_it_is_over(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(backfill="none")
    cluster.node("a")
    snapshot = committed(cluster.snapshot(), decide(cluster))
    booked = book(cluster, "booked", starts=2, hours=3)
    snapshot = committed(cluster.snapshot(), decide(cluster))
    long, short = cluster.claim(-1, hours=4), cluster.claim(-2, hours=2)

    found = forecast(snapshot, cluster.policy, [long, short])

    assert booked.id not in {claim.id for claim in snapshot.queue}
    assert (found[-1].starts_at, found[-2].starts_at) == (at(5), at(0))
    assert found[-1].reasons[0].code == "booked_ahead"


def test_a_forecast_waits_for_maintenance_to_be_over(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=1)
    snapshot = replace(cluster.snapshot(), outages=(Outage(1, at(2), at(6)),))
    on = replace(cluster.snapshot(), held=(), outages=(Outage(1, at(-1), at(3)),))
    long, short = cluster.claim(-1, hours=2), cluster.claim(-2, hours=1)

    found = forecast(snapshot, cluster.policy, [long, short])

    assert (found[-1].starts_at, found[-2].starts_at) == (at(6), at(1))
    assert forecast(on, cluster.policy, [long])[-1].starts_at == at(3)


def test_a_forecast_of_a_booking_is_its_time_or_unknown(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=3)
    free, taken = cluster.claim(-1, starts_at=at(3)), cluster.claim(-2, starts_at=at(2))

    found = cluster.forecast(free, taken)

    assert (found[-1].starts_at, found[-2].starts_at) == (at(3), None)


def test_queued_claims_in_a_forecast_keep_clear_of_bookings_too(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(backfill="none")
    cluster.node("a").hold(0, hours=1)
    book(cluster, "booked", starts=3, hours=2)
    snapshot = committed(cluster.snapshot(), decide(cluster))
    long = cluster.request("long", hours=3)
    short = cluster.request("short", hours=2)
    snapshot = replace(snapshot, queue=(long, short))

    found = forecast(snapshot, cluster.policy, [long, short])

    assert (found[long.id].starts_at, found[short.id].starts_at) == (at(5), at(1))


@pytest.mark.parametrize("silence", ["never", "stale", "offline"])
def test_a_booking_that_only_silent_nodes_could_serve_waits_for_their_word(
    cluster: Cluster, silence: str
) -> None:
    cluster.node("a", blocked=silence)
    claim = book(cluster, "later", starts=24, hours=2)

    found = decide(cluster)

    (wait,) = found.waits
    assert found.grants == ()
    assert (wait.claim_id, wait.is_impossible) == (claim.id, False)
    assert [(reason.code, reason.detail) for reason in wait.reasons] == [
        ("nodes_silent", {"starts_at": at(24).isoformat(), "nodes": ["a"]})
    ]


def test_a_booking_takes_a_node_that_is_heard_before_it_waits_for_a_silent_one(cluster: Cluster) -> None:
    cluster.node("a", blocked="never")
    cluster.node("b")
    claims = [book(cluster, name, starts=24) for name in ("first", "second")]

    found = decide(cluster)

    assert [grant.claim_id for grant in found.grants] == [claims[0].id]
    assert [(wait.claim_id, wait.is_impossible) for wait in found.waits] == [(claims[1].id, False)]


@pytest.mark.parametrize("word", ["cordoned", "maintenance"])
def test_a_booking_on_a_node_that_an_operator_took_out_is_refused(cluster: Cluster, word: str) -> None:
    cluster.node("a", blocked=word)
    claim = book(cluster, "later", starts=24)

    assert refusal(decide(cluster), claim)[0] == "booking_taken"


def test_a_booking_that_a_silent_node_could_not_serve_either_is_refused(cluster: Cluster) -> None:
    cluster.node("a", blocked="offline").hold(0, hours=30)
    claim = book(cluster, "later", starts=24)

    assert refusal(decide(cluster), claim)[0] == "booking_taken"


def test_a_booking_above_the_quota_is_refused_whoever_is_silent(cluster: Cluster) -> None:
    cluster.node("a", devices=2, blocked="never")
    cluster.team("vision", ceiling=1000)
    claim = book(cluster, "later", starts=24, count=2)

    assert refusal(decide(cluster), claim)[0] == "above_quota"


@pytest.mark.parametrize("word", ["", "asleep", "maintenance"])
def test_a_booking_that_only_paused_boards_could_serve_waits_for_the_end_of_the_pause(
    cluster: Cluster, word: str
) -> None:
    cluster.node("a", blocked=word)
    cluster.change(1, blocked="paused", paused_until=at(0.25))
    claim = book(cluster, "later", starts=24, hours=2)

    (wait,) = decide(cluster).waits

    assert (wait.claim_id, wait.is_impossible) == (claim.id, False)
    assert [(reason.code, reason.detail) for reason in wait.reasons] == [
        ("intake_paused", {"nodes": ["a"], "more": 0, "until": at(0.25).isoformat()})
    ]


def test_a_booking_that_a_paused_board_could_not_serve_either_is_refused(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=30)
    cluster.change(1, blocked="paused", paused_until=at(0.25))

    claim = book(cluster, "later", starts=24)

    assert refusal(decide(cluster), claim)[0] == "booking_taken"
