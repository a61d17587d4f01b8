from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.engine import forecast
from scheduler.engine.model import Running
from tests.engine.builder import NOON, Cluster


def test_a_claim_that_fits_now_starts_now_without_reasons(cluster: Cluster) -> None:
    cluster.node("a")
    claim = cluster.claim(-1)

    found = cluster.forecast(claim)[-1]

    assert (found.starts_at, found.reasons, found.position) == (NOON, (), 1)


def test_a_claim_starts_when_the_first_fitting_placement_ends(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=3).hold(1, hours=2)

    assert cluster.start_of(cluster.claim(-1)) == 2
    assert cluster.start_of(cluster.claim(-1, count=2)) == 3


def test_those_ahead_in_the_queue_start_first(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=1)
    cluster.request("ahead", hours=4)
    cluster.request("next", hours=2)

    claim = cluster.claim(-1)

    assert cluster.start_of(claim) == 1 + 4 + 2
    assert cluster.forecast(claim)[-1].position == 3


def test_a_what_if_of_higher_priority_goes_ahead_of_the_queue(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=1)
    cluster.request("ahead", hours=4)

    claim = cluster.claim(-1, priority=5)

    assert cluster.start_of(claim) == 1
    assert cluster.forecast(claim)[-1].position == 1


def test_what_ifs_take_nothing_from_the_queue_nor_from_each_other(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=1)
    queued = cluster.request("queued", hours=4)
    what_ifs = [cluster.claim(-n, priority=5) for n in (1, 2, 3)]

    found = cluster.forecast(queued, *what_ifs)

    assert len({forecast.starts_at for forecast in found.values()}) == 1


def test_a_forecast_of_queued_claims_agrees_with_the_turn(cluster: Cluster) -> None:
    cluster.node("a", devices=3).hold(0, "3g.40gb", 0)
    cluster.node("b", "l40s-48gb", devices=2).hold(0, "mps 500 1000", team="language")
    claims = [
        cluster.request(f"{n}", flavor, count, team=team)
        for n, (flavor, count, team) in enumerate(
            [("whole", 2, "vision"), ("3g.40gb", 1, "vision"), ("mps 400 1000", 1, "language"),
             ("whole", 1, "vision"), ("mps 400 1000", 1, "vision"), ("4g.40gb", 1, "vision")]
        )
    ]  # fmt: skip

    found, turn = cluster.forecast(*claims), cluster.plan()

    now = {cluster.names[c.id] for c in claims if found[c.id].starts_at == NOON}
    assert now == set(turn.grants)
    assert {cluster.names[c.id]: found[c.id].reasons for c in claims if c.id and found[c.id].reasons} == {
        name: wait.reasons for name, wait in turn.waits.items()
    }


def test_beyond_the_horizon_the_start_is_unknown_and_the_reasons_stay(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=30)

    found = cluster.forecast(cluster.claim(-1), hours=24)[-1]

    assert found.starts_at is None
    assert found.reasons[0].code == "no_capacity"
    assert not found.is_impossible


def test_a_blocked_node_is_not_counted_on(cluster: Cluster) -> None:
    cluster.node("a", blocked="offline").hold(0, hours=1)

    assert cluster.start_of(cluster.claim(-1)) is None


def test_an_impossible_claim_says_so(cluster: Cluster) -> None:
    cluster.node("a").hold(0)

    assert cluster.forecast(cluster.claim(-1, count=2))[-1].is_impossible


def test_quota_given_back_by_an_end_lets_the_team_go_on(cluster: Cluster) -> None:
    cluster.team("lab", ceiling=1000, used=1000)
    cluster.team("vision", parent="lab")
    cluster.team("language", parent="lab")
    cluster.node("a", devices=4).hold(0, team="language", hours=5)

    assert cluster.start_of(cluster.claim(-1, team="vision")) == 5


def test_a_simulated_lease_gives_its_quota_back_too(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000)
    cluster.node("a", devices=4)
    cluster.request("first", hours=2)
    cluster.request("second", hours=2)

    assert cluster.start_of(cluster.claim(-1)) == 4


def test_what_fits_under_the_ceiling_on_the_lighter_board_alone_starts_there_once_the_quota_is_back(
    cluster: Cluster,
) -> None:
    cluster.team("vision", ceiling=400, used=250)
    node = cluster.node("a", devices=2)
    cluster.change(node.devices[1], weight_milli=500)
    node.hold(0, "2g.20gb", hours=2)
    claim = cluster.request("pair", "2g.20gb", 2)

    assert cluster.start_of(claim) == 2


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("nodes", [1, 0, 2])
def test_a_what_if_waits_for_the_board_that_its_ceiling_pays_for(
    cluster: Cluster, count: int, nodes: int
) -> None:
    units = count * max(nodes, 1)
    cluster.team("vision", ceiling=500 * units)
    for name in ("a", "b"):
        node = cluster.node(name, devices=4)
        for index in (1, 3):
            cluster.change(node.devices[index], weight_milli=500)
            node.hold(index, team="other", hours=5)
    what_if = cluster.claim(-1, count=count, nodes=nodes)

    found = cluster.start_of(what_if)

    assert found == 5
    assert cluster.start_of(cluster.request("same", count=count, nodes=nodes)) == found


def test_a_what_if_is_told_of_what_is_booked_on_the_board_that_its_ceiling_pays_for(
    cluster: Cluster,
) -> None:
    cluster.team("vision", ceiling=600)
    cluster.node("heavy")
    cluster.node("light", "l40s-48gb", weight_milli=500)
    cluster.request("booked", team="other", models=("l40s-48gb",), starts_at=NOON + timedelta(hours=1))

    assert cluster.start_of(cluster.claim(-1, hours=2)) == 2
    assert cluster.start_of(cluster.claim(-1, hours=1)) == 0


def test_what_one_team_cannot_pay_for_another_may_start_where_the_rest_is_booked(cluster: Cluster) -> None:
    cluster.team("poor", ceiling=600)
    cluster.node("heavy").hold(0)
    cluster.node("light", "l40s-48gb", weight_milli=500).hold(0)
    cluster.request("booked", models=("l40s-48gb",), starts_at=NOON + timedelta(hours=2))
    poor = cluster.request("poor", team="poor", hours=2)
    other = cluster.request("other", hours=2)

    assert (cluster.start_of(poor), cluster.start_of(other)) == (3, 1)


def test_a_board_shared_by_another_team_comes_free_with_its_last_share(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 100 1000", hours=1).hold(0, "mps 100 1000", hours=3)

    assert cluster.start_of(cluster.claim(-1, "mps 100 1000", team="language")) == 3
    assert cluster.start_of(cluster.claim(-1)) == 3


def test_two_slices_of_the_same_instant_are_given_back_together(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "3g.40gb", 0, hours=2).hold(0, "3g.40gb", 4, hours=2)

    assert cluster.start_of(cluster.claim(-1)) == 2


def test_an_overdue_placement_is_expected_soon_but_not_now(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=-2)

    start = cluster.start_of(cluster.claim(-1))

    assert start is not None
    assert 0 < start < 0.1


def test_counter_offers_are_only_what_starts_sooner_the_soonest_first(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=8).hold(1, "4g.40gb", 0, hours=4)
    wanted = cluster.claim(-1, count=2)
    one, slice_, same, never = (
        cluster.claim(-2),
        cluster.claim(-3, "3g.40gb"),
        cluster.claim(-4, count=2, hours=2),
        cluster.claim(-5, count=3),
    )

    assert cluster.offers(wanted, one, slice_, same, never) == [-3, -2]


def test_nothing_is_offered_for_what_starts_now(cluster: Cluster) -> None:
    cluster.node("a", devices=2)

    assert cluster.offers(cluster.claim(-1), cluster.claim(-2, "1g.10gb")) == []


@pytest.mark.parametrize("horizon", [-5, 0, 10**18])
def test_any_horizon_has_an_answer(cluster: Cluster, horizon: int) -> None:
    cluster.node("a").hold(0)

    assert cluster.forecast(cluster.claim(-1), hours=horizon)[-1].position == 1


def test_who_leases_were_told_to_go_for_starts_when_they_are_gone_and_others_after_it(
    cluster: Cluster,
) -> None:
    cluster.node("a").hold(0, hours=0.05)
    ahead = cluster.request("ahead", hours=3)
    owed = cluster.request("owed", hours=2)
    told = Running(
        cluster.held[0].lease_id or 0, 90, 1, 1, 1, NOON - timedelta(hours=1), cluster.held[0].until, 1000,
        is_preemptible=True, preempt_at=cluster.held[0].until, preempted_for=owed.id,
    )  # fmt: skip
    snapshot = replace(cluster.snapshot(), running=(told,))

    found = forecast(snapshot, cluster.policy, [ahead, owed, cluster.claim(-1)])

    starts = [found[i].starts_at for i in (owed.id, ahead.id, -1)]
    gone = NOON + timedelta(hours=0.05)
    assert starts == [gone, gone + timedelta(hours=2), gone + timedelta(hours=5)]
    assert [found[i].is_certain for i in (owed.id, ahead.id, -1)] == [True, False, False]


def test_a_malformed_what_if_is_answered_not_raised(cluster: Cluster) -> None:
    cluster.node("a")
    bad = replace(cluster.claim(-1), count=0)

    assert cluster.forecast(bad)[-1].is_impossible
