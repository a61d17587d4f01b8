"""Who goes first: each order in a sentence, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.engine import plan
from scheduler.engine.learning.lengths import LengthRecord
from scheduler.engine.model import Claim, DecayedUsage, Learned, PolicyRules, Running, Snapshot, TeamQuota
from scheduler.engine.order import ORDERS
from scheduler.engine.order.costs import Costs
from scheduler.engine.order.fair_share import decayed
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.policy import Preempting
from tests.engine.builder import HOUR, NOON, Cluster

ALICE, BOB, CHARLIE = 1, 2, 3


def ended(team: int, lengths: list[float]) -> Learned:
    record = LengthRecord()
    for length in lengths:
        record.note(team, 1, length)
    return record.learned(1)


def order(cluster: Cluster, name: str, **more: object) -> list[str]:
    """The names in the order of the turn's start."""
    snapshot = replace(cluster.snapshot(), **more)  # type: ignore[arg-type]
    return [
        cluster.names[claim.id] for claim in Lineup(snapshot, PolicyRules(order=name)).ordered(snapshot.queue)
    ]


def granted(cluster: Cluster, name: str, **more: object) -> list[str]:
    """Who starts, in order."""
    snapshot = replace(cluster.snapshot(), **more)  # type: ignore[arg-type]
    return [cluster.names[grant.claim_id] for grant in plan(snapshot, PolicyRules(order=name)).grants]


def used(cluster: Cluster, **hours: float) -> tuple[DecayedUsage, ...]:
    """What alice (of the team named) has used so far, in hours of one device."""
    return tuple(
        DecayedUsage(cluster.team_id(team), ALICE, int(hour * HOUR * 1000)) for team, hour in hours.items()
    )


def running(cluster: Cluster, team: str, user: int, *, minutes: int, cost: int = 1000) -> Running:
    began = NOON - timedelta(minutes=minutes)
    until = NOON + timedelta(hours=1)
    return Running(9, 99, cluster.team_id(team), user, 1, began, until, cost)


def test_fifo_looks_at_arrival_alone(cluster: Cluster) -> None:
    cluster.request("early")
    cluster.request("urgent", priority=10)

    assert order(cluster, "fifo") == ["early", "urgent"]


@pytest.mark.parametrize("name", sorted(set(ORDERS) - {"fifo"}))
def test_priority_stands_above_every_other_rule(cluster: Cluster, name: str) -> None:
    cluster.node("a", devices=4)
    cluster.team("vision")
    cluster.request("early and short", team="speech", user_id=BOB, hours=0.1)
    cluster.request("urgent", team="vision", user_id=ALICE, hours=90, count=4, priority=1)

    assert order(cluster, name, people=used(cluster, vision=90))[0] == "urgent"


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_equal_claims_go_by_time_queued_and_what_ifs_stand_behind_real_ones(
    cluster: Cluster, name: str
) -> None:
    cluster.node("a")
    real = cluster.request("real", user_id=ALICE)
    what_if = replace(real, id=-real.id)
    later = replace(real, id=7, queued_at=real.queued_at + timedelta(seconds=1))

    found = Lineup(cluster.snapshot(), PolicyRules(order=name)).ordered((later, what_if, real))

    assert [claim.id for claim in found] == [real.id, what_if.id, later.id]


def test_fair_tree_serves_the_team_that_used_least_and_in_it_the_person(cluster: Cluster) -> None:
    cluster.node("a")
    for user, name in ((ALICE, "alice"), (BOB, "bob")):
        cluster.request(f"{name} of vision", team="vision", user_id=user)
        cluster.request(f"{name} of speech", team="speech", user_id=user)
    people = used(cluster, vision=10, speech=30)

    assert order(cluster, "fair_tree", people=people) == [
        "bob of vision",
        "alice of vision",
        "bob of speech",
        "alice of speech",
    ]


def test_a_guarantee_three_times_as_large_is_a_share_three_times_as_large(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("vision", team="vision", user_id=ALICE)
    cluster.request("speech", team="speech", user_id=ALICE)
    for team, guarantee in (("vision", 3000), ("speech", 1000)):
        cluster.quotas[team] = replace(cluster.quotas[team], guaranteed_milli=guarantee)

    assert order(cluster, "fair_tree", people=used(cluster, vision=29, speech=10))[0] == "vision"
    assert order(cluster, "fair_tree", people=used(cluster, vision=31, speech=10))[0] == "speech"


def test_people_of_a_team_with_teams_below_stand_beside_those_teams(cluster: Cluster) -> None:
    cluster.team("vision")
    cluster.team("perception", parent="vision")
    cluster.request("of perception", team="perception", user_id=BOB)
    cluster.request("of vision itself", team="vision", user_id=CHARLIE)
    people = (
        DecayedUsage(cluster.team_id("perception"), ALICE, 60_000),
        DecayedUsage(cluster.team_id("vision"), ALICE, 50_000),
    )

    assert order(cluster, "fair_tree", people=people) == ["of vision itself", "of perception"]


@pytest.mark.parametrize("name", ["fair_tree", "drf", "default", "guarantees_first"])
def test_a_burst_of_one_person_does_not_starve_a_later_one(cluster: Cluster, name: str) -> None:
    cluster.node("a", devices=8)
    cluster.node("b", devices=2)
    for number in range(300):
        cluster.request(f"alice {number}", user_id=ALICE)
    cluster.request("bob", user_id=BOB)

    found = granted(cluster, name)

    assert len(found) == 10
    assert "bob" in found[:2]


def test_young_leases_count_as_if_they_had_run_the_penalty_time(cluster: Cluster) -> None:
    cluster.request("alice", user_id=ALICE)
    cluster.request("bob", user_id=BOB)
    people = (DecayedUsage(cluster.team_id("vision"), BOB, 1000 * 1800),)

    young = (running(cluster, "vision", ALICE, minutes=1),)
    old = (running(cluster, "vision", ALICE, minutes=61),)

    assert order(cluster, "fair_tree", people=people, running=young) == ["bob", "alice"]
    assert order(cluster, "fair_tree", people=people, running=old) == ["alice", "bob"]


def test_drf_weighs_what_a_team_holds_most_of(cluster: Cluster) -> None:
    host = {"cpu_milli": 100_000, "memory_mib": 1_000_000}
    node = cluster.node("a", devices=4, host=host)
    node.hold(0, team="vision")  # a quarter of the boards
    node.hold(1, team="speech", cpu_milli=40_000)  # a quarter too, and two fifths of the CPU
    cluster.request("speech", team="speech", user_id=BOB)
    cluster.request("vision", team="vision", user_id=ALICE)

    assert order(cluster, "drf") == ["vision", "speech"]


def test_drf_counts_slices_and_shares_as_their_part_of_boards(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, "3g.40gb", 0, team="vision")
    cluster.node("b", "l40s-48gb", devices=2).hold(0, "mps 400 8000", team="speech")
    cluster.request("vision", team="vision", user_id=BOB)
    cluster.request("speech", team="speech", user_id=ALICE)

    assert order(cluster, "drf") == ["speech", "vision"]


def test_shortest_goes_by_predicted_gpu_time_and_by_asked_time_where_nothing_is_predicted(
    cluster: Cluster,
) -> None:
    cluster.node("a", devices=8)
    cluster.request("asks an hour", hours=1, queued_s=-60)
    cluster.request("asks ten, runs one minute", hours=10, predicted_s=60, queued_s=-60)
    cluster.request("one minute on eight", hours=10, count=8, predicted_s=60, queued_s=-60)

    assert order(cluster, "shortest") == [
        "asks ten, runs one minute",
        "one minute on eight",
        "asks an hour",
    ]


def test_who_ran_past_its_prediction_is_taken_to_run_as_long_again(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("overdue", hours=10, predicted_s=600, ran_s=900, queued_s=0)
    cluster.request("predicted longer", hours=10, predicted_s=1000, queued_s=0)
    cluster.request("has little left", hours=10, predicted_s=1000, ran_s=200, queued_s=0)

    assert order(cluster, "shortest") == ["has little left", "overdue", "predicted longer"]


def test_shortest_ages(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("long, waits for ten hours", hours=10, queued_s=-10 * HOUR)
    cluster.request("short, just came", hours=1.5, queued_s=0)

    assert order(cluster, "shortest")[0] == "long, waits for ten hours"


def test_the_default_goes_by_what_was_learned_of_team_and_size(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    cluster.request("speech", team="speech", user_id=BOB, queued_s=0)
    cluster.request("vision", team="vision", user_id=ALICE, queued_s=0)
    vision = cluster.team_id("vision")

    short, long = ended(vision, [60] * 1000), ended(vision, [10**9] * 1000)

    assert order(cluster, "default", learned=short)[0] == "vision"
    assert order(cluster, "default", learned=long)[0] == "speech"


def test_the_default_reads_what_was_learned_at_the_age_a_preempted_request_has_run_to(
    cluster: Cluster,
) -> None:
    cluster.node("a", devices=8)
    cluster.request("fresh", queued_s=0)
    cluster.request("nearly done", ran_s=720, queued_s=720)

    # Whatever of this team is old enough is about to end.
    learned = ended(cluster.team_id("vision"), [1000] * 1000)

    assert order(cluster, "default", learned=learned) == ["nearly done", "fresh"]


def test_what_cannot_be_stopped_goes_by_its_mean_length_and_what_can_by_its_chance_to_end_soon(
    cluster: Cluster,
) -> None:
    cluster.node("a")
    record = LengthRecord()
    for number in range(100):
        record.note(cluster.team_id("vision"), 1, 60.0 if number % 10 else 100_000.0)
        record.note(cluster.team_id("speech"), 1, 1_000.0)
    learned = record.learned(1)
    for consents in (False, True):
        said = {"hours": 100, "work": "training", "is_preemptible": consents}
        cluster.request(f"mostly short {consents}", team="vision", **said)
        cluster.request(f"always the same {consents}", team="speech", **said)
    snapshot = replace(cluster.snapshot(), learned=learned)
    policy = PolicyRules(order="default", preempting=Preempting(by_score=True))

    found = [cluster.names[claim.id] for claim in Lineup(snapshot, policy).ordered(snapshot.queue)]

    assert found.index("mostly short True") < found.index("always the same True")
    assert found.index("always the same False") < found.index("mostly short False")


def test_the_default_heeds_what_is_predicted_as_far_as_predictions_were_right(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    cluster.request("long", queued_s=0, predicted_s=8000, hours=9)
    cluster.request("short", queued_s=0, predicted_s=80, hours=9)
    vision = cluster.team_id("vision")
    right, wrong = LengthRecord(), LengthRecord()
    for at in range(400):
        length = 80 if at % 2 else 8000
        right.note(vision, 1, length, length)
        wrong.note(vision, 1, length, 8080 - length)

    assert order(cluster, "default", learned=right.learned(1)) == ["short", "long"]
    assert order(cluster, "default", learned=wrong.learned(2)) == ["long", "short"]


def test_what_a_request_ran_before_it_was_preempted_is_no_waiting(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    cluster.request("waited", queued_s=7200, hours=1)
    cluster.request("ran", queued_s=7200, ran_s=7200, hours=1)

    assert order(cluster, "shortest") == ["waited", "ran"]


def test_the_default_softens_the_index_by_use_of_the_share(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    cluster.request("heavy user", team="vision", user_id=ALICE, hours=1, queued_s=0)
    cluster.request("light user", team="speech", user_id=BOB, hours=2, queued_s=0)
    cluster.request("light user, very long", team="speech", user_id=BOB, hours=50, queued_s=0)

    found = order(cluster, "default", people=used(cluster, vision=100))

    assert found == ["light user", "heavy user", "light user, very long"]


def test_guarantees_come_first_as_far_as_they_reach(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    for number in range(4):
        cluster.request(f"short {number}", team="speech", user_id=BOB, hours=0.1)
    for number in range(3):
        cluster.request(f"guaranteed {number}", team="vision", user_id=ALICE, hours=50)
    cluster.quotas["vision"] = TeamQuota(
        cluster.team_id("vision"), None, None, 0, "vision", guaranteed_milli=2000
    )

    found = granted(cluster, "guarantees_first")

    assert found[:2] == ["guaranteed 0", "guaranteed 1"]
    assert found[-1] == "guaranteed 2"


def test_a_claim_costs_the_order_what_it_costs_the_quota(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    claim = cluster.request("share", "mps 500 1000")
    seen = cluster.snapshot()
    seen = replace(seen, devices=tuple(replace(one, weight_milli=333) for one in seen.devices))

    (grant,) = plan(seen, cluster.policy).grants

    assert Costs(seen).of(claim) == grant.cost_milli == 167


def test_a_grant_is_counted_within_the_turn(cluster: Cluster) -> None:
    cluster.node("a", devices=4)
    for number in range(2):
        for name, user in (("alice", ALICE), ("bob", BOB)):
            cluster.request(f"{name} {number}", user_id=user, queued_s=user * 10 + number)

    assert granted(cluster, "fifo") == ["alice 0", "alice 1", "bob 0", "bob 1"]
    assert granted(cluster, "fair_tree") == ["alice 0", "bob 0", "alice 1", "bob 1"]


def test_the_order_at_the_start_does_not_know_later_grants(cluster: Cluster) -> None:
    cluster.node("a", devices=4)
    claims = [cluster.request(str(number), user_id=number % 3) for number in range(6)]
    snapshot = cluster.snapshot()
    lineup = Lineup(snapshot, PolicyRules(order="fair_tree"))
    before = lineup.ordered(claims)
    (first, *_) = plan(snapshot, PolicyRules(order="fair_tree")).grants
    assert lineup.next() is not None

    lineup.note(first)

    assert lineup.ordered(claims) == before


def test_plain_figures_of_an_odd_snapshot_are_no_trouble(cluster: Cluster) -> None:
    """No device, nobody in the tree, a circle of parents, an empty curve."""
    cluster.request("one", user_id=ALICE, duration_s=0)
    circle = (TeamQuota(5, 6, None, 0), TeamQuota(6, 5, None, 0))
    claims: tuple[Claim, ...] = tuple(
        replace(cluster.queue[0], id=team, team_id=team) for team in (1, 5, 6, 7)
    )
    snapshot = Snapshot(NOON, (), (), (), claims, circle, learned=Learned(1))

    for name in ORDERS:
        assert [claim.id for claim in Lineup(snapshot, PolicyRules(order=name))] == [1, 5, 6, 7]


def test_usage_halves_in_a_half_life() -> None:
    assert decayed(80.0, 7200, 3600) == pytest.approx(20.0)
