"""Starts that are promised, and who may go before: nobody delays a promise, whatever the cluster and queue."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine import forecast, plan
from scheduler.engine.model import Outage, PolicyRules, Snapshot
from scheduler.engine.plan import decided
from tests.engine.builder import NOON, Cluster
from tests.engine.playing import assert_kept, committed, play
from tests.engine.test_properties import clusters

some = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG_AGO = -3600


def waiting(cluster: Cluster, name: str, count: int = 1, hours: float = 1, queued_s: int = LONG_AGO):  # type: ignore[no-untyped-def]
    return cluster.request(name, count=count, hours=hours, queued_s=queued_s + len(cluster.queue))


def two_boards(cluster: Cluster) -> None:
    """One board free, one that comes free in two hours, and a claim for both at the head of the queue."""
    cluster.node("a", devices=2).hold(0, hours=2)
    waiting(cluster, "both", count=2, hours=4)


def test_a_shorter_claim_behind_starts_where_it_is_over_in_time_and_a_longer_one_does_not(
    cluster: Cluster,
) -> None:
    two_boards(cluster)
    waiting(cluster, "long", hours=3)
    waiting(cluster, "short", hours=2)

    turn = cluster.plan()

    assert set(turn.grants) == {"short"}
    assert turn.codes("long")[0] == "behind"
    assert turn.code("both") == "no_capacity"


def test_the_reason_names_who_it_is_kept_for_and_what_would_fit(cluster: Cluster) -> None:
    two_boards(cluster)
    waiting(cluster, "long", hours=3)

    reason = cluster.plan().waits["long"].reasons[0]

    assert reason.code == "reserved_for_waiting"
    assert reason.detail == {
        "position": 1,
        "starts_at": (NOON + timedelta(hours=2)).isoformat(),
        "longest_s": 7200,
    }


def test_a_form_hears_who_a_place_is_kept_for_and_starts_after(cluster: Cluster) -> None:
    two_boards(cluster)

    found = cluster.forecast(cluster.claim(-1, hours=3), cluster.claim(-2, hours=2))

    assert found[-1].starts_at == NOON + timedelta(hours=6)
    assert (found[-1].reasons[0].code, found[-1].reasons[0].detail["position"]) == ("reserved_for_waiting", 1)
    assert found[-2].starts_at == NOON


def test_without_backfill_nothing_is_promised(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(backfill="none")
    two_boards(cluster)
    waiting(cluster, "long", hours=3)

    assert set(cluster.plan().grants) == {"long"}


def test_who_has_not_waited_long_enough_is_promised_nothing(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=2)
    waiting(cluster, "both", count=2, hours=4, queued_s=-60)
    waiting(cluster, "long", hours=3, queued_s=-60)

    assert set(cluster.plan().grants) == {"long"}


def test_a_claim_that_may_be_cut_ends_where_a_promise_begins(cluster: Cluster) -> None:
    two_boards(cluster)
    cluster.request("cut", hours=8, queued_s=0, least_duration_s=1800)

    grant = cluster.plan().grants["cut"]

    assert (grant.duration_s, grant.cut_by) == (7200, "waiting")


@pytest.mark.parametrize(("backfill", "depth", "promised"), [("easy", 3, 1), ("conservative", 2, 2)])
def test_easy_promises_one_start_and_conservative_as_many_as_its_depth(
    cluster: Cluster, backfill: str, depth: int, promised: int
) -> None:
    cluster.policy = PolicyRules(backfill=backfill, depth=depth)  # type: ignore[arg-type]
    cluster.node("a", devices=2).hold(0, hours=2).hold(1, hours=3)
    for number in range(4):
        waiting(cluster, f"r{number}", count=2)

    turn = decided(cluster.snapshot(), cluster.policy)

    assert len(turn.promised) == promised
    assert sorted(turn.promised.values())[0] == NOON + timedelta(hours=3)
    assert sorted(turn.promised.values())[-1] == NOON + timedelta(hours=2 + promised)


def test_what_is_short_of_quota_is_promised_nothing(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000)
    two_boards(cluster)
    cluster.request("other", team="language", hours=9, queued_s=0)

    assert set(cluster.plan().grants) == {"other"}


def test_a_promise_keeps_clear_of_maintenance(cluster: Cluster) -> None:
    two_boards(cluster)
    snapshot = replace(
        cluster.snapshot(), outages=(Outage(1, NOON + timedelta(hours=5), NOON + timedelta(hours=6)),)
    )

    turn = decided(snapshot, cluster.policy)

    assert set(turn.promised.values()) == {NOON + timedelta(hours=6)}


@st.composite
def waiting_clusters(draw: st.DrawFn) -> Cluster:
    """Any small cluster whose claims have waited long, without ceilings, under any backfill."""
    cluster = draw(clusters())
    backfill = draw(st.sampled_from(["easy", "conservative"]))
    cluster.policy = replace(cluster.policy, backfill=backfill, depth=draw(st.integers(1, 3)))
    for name in cluster.quotas:
        cluster.quotas[name] = replace(cluster.quotas[name], ceiling_milli=None)
    cluster.queue = [
        replace(
            claim, queued_at=claim.queued_at - timedelta(hours=2), duration_s=1800 * draw(st.integers(1, 6))
        )
        for claim in cluster.queue
    ]
    return cluster


def in_use(cluster: Cluster) -> Snapshot:
    """The first half of the queue runs, the second half waits."""
    whole = cluster.snapshot()
    half = len(whole.queue) // 2
    first = replace(whole, queue=whole.queue[:half])
    return replace(committed(first, plan(first, cluster.policy)), bookings=(), queue=whole.queue[half:])


@some
@given(waiting_clusters())
def test_nobody_behind_delays_a_promised_start(cluster: Cluster) -> None:
    snapshot = in_use(cluster)
    turn = decided(snapshot, cluster.policy)
    order = [claim.id for claim in turn.lineup.ordered(snapshot.queue)]

    for claim_id, starts_at in turn.promised.items():
        until = set(order[: order.index(claim_id) + 1])
        alone = replace(snapshot, queue=tuple(c for c in snapshot.queue if c.id in until))
        assert decided(alone, cluster.policy).promised[claim_id] == starts_at

    # A second promise rests on how those ahead of it are placed, which is decided when they start.
    starts = play(snapshot, cluster.policy).starts
    for claim_id, starts_at in list(turn.promised.items())[:1]:
        assert starts[claim_id] <= starts_at


@some
@given(waiting_clusters(), st.data())
def test_no_board_is_ever_over_held_with_bookings_and_maintenance_ahead(
    cluster: Cluster, data: st.DataObject
) -> None:
    cluster.queue = [
        replace(claim, starts_at=NOON + timedelta(minutes=30 * data.draw(st.integers(1, 9))))
        if data.draw(st.booleans())
        else replace(claim, least_duration_s=data.draw(st.sampled_from([0, 900])))
        for claim in cluster.queue
    ]
    snapshot = in_use(cluster)
    begins = NOON + timedelta(minutes=30 * data.draw(st.integers(3, 8)))
    outage = Outage(1, begins, begins + timedelta(hours=1))
    running = {h.device_id for h in snapshot.held if h.until > begins}
    if not any(device.node_id == 1 and device.id in running for device in snapshot.devices):
        snapshot = replace(snapshot, outages=(outage,))
    away = {device.id for device in snapshot.devices if device.node_id == 1} if snapshot.outages else set()

    for seen, found in play(snapshot, cluster.policy).turns:
        assert plan(seen, cluster.policy) == found
        after = committed(seen, found)
        assert_kept(after, cluster.policy)
        claims = {claim.id: claim for claim in seen.queue}
        for grant in found.grants:
            claim = claims[grant.claim_id]
            at = grant.starts_at or seen.taken_at
            ends_at = at + timedelta(seconds=grant.duration_s)
            assert len(grant.slots) == claim.count * max(claim.nodes, 1)
            assert grant.duration_s == claim.duration_s or (
                grant.cut_by and claim.least_duration_s <= grant.duration_s < claim.duration_s
            )
            if at < outage.until and ends_at > outage.starts_at:
                assert not away & {slot.device_id for slot in grant.slots}


@some
@given(waiting_clusters())
def test_what_is_forecast_for_now_and_for_the_promised_is_what_the_turn_says(cluster: Cluster) -> None:
    snapshot = in_use(cluster)
    turn = decided(snapshot, cluster.policy)

    found = forecast(snapshot, cluster.policy, snapshot.queue)

    assert {i for i, one in found.items() if one.starts_at == NOON} == {g.claim_id for g in turn.grants}
    for claim_id, starts_at in turn.promised.items():
        said = found[claim_id].starts_at
        assert said is not None
        assert said <= starts_at


@some
@given(waiting_clusters())
def test_what_is_forecast_is_what_happens_when_nothing_else_does(cluster: Cluster) -> None:
    snapshot = in_use(cluster)
    happened = play(snapshot, cluster.policy).starts

    found = forecast(snapshot, cluster.policy, snapshot.queue)

    assert {i: one.starts_at for i, one in found.items() if one.starts_at} == happened
