"""The nearest things that would fit now: asked of the state, near before far, never above quota."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given

from scheduler.engine import EngineState
from scheduler.engine.alternatives import MOST_CHANGES, Alternative, nearest
from scheduler.engine.model import Claim, Grant
from tests.engine.builder import NOON, Cluster
from tests.engine.test_properties import clusters, few, second_half


def state_of(cluster: Cluster) -> EngineState:
    return EngineState.from_snapshot(cluster.snapshot(), cluster.policy)


def changes(cluster: Cluster, claim: Claim) -> list[tuple[str, str, int]]:
    """Kind, what, and how many units of what would fit now."""
    return [said(change) for change in nearest(state_of(cluster), claim)]


def said(change: Alternative) -> tuple[str, str, int]:
    claim = change.claim
    if claim.mode == "mig":
        what = claim.profile
    else:
        what = "whole" if claim.mode == "exclusive" else f"{claim.share_milli} {claim.memory_mib}"
    models = "" if not claim.models else f" {'|'.join(sorted(claim.models))}"
    return change.kind, what + models, claim.count


def test_of_fewer_units_the_largest_number_that_fits_is_nearest(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", 4).hold(0).hold(1)

    assert changes(cluster, cluster.claim(-1, count=4))[0] == ("fewer", "whole", 2)


def test_the_next_smaller_profile_is_nearest(cluster: Cluster) -> None:
    sizes = ("1g.10gb", "2g.20gb", "3g.40gb")
    cluster.node("a", profiles=sizes, modes=frozenset({"mig"})).hold(0, "3g.40gb", 0).hold(0, "1g.10gb", 6)

    found = changes(cluster, cluster.claim(-1, "3g.40gb"))

    assert found == [("smaller", "2g.20gb", 1), ("smaller", "1g.10gb", 1)]


def test_a_whole_board_that_is_taken_is_offered_as_a_slice_and_on_another_model(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb", 1, profiles=("3g.40gb",)).hold(0, "3g.40gb", 0)
    cluster.node("b", "a100-80gb", 1, modes=frozenset({"exclusive"}))

    found = changes(cluster, cluster.claim(-1, models=("h100-80gb",)))

    assert found == [("other", "whole a100-80gb", 1), ("smaller", "3g.40gb h100-80gb", 1)]


def test_a_share_is_offered_with_what_the_board_has_left(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 400 30000")
    memory = cluster.devices[1].memory_mib

    found = changes(cluster, cluster.claim(-1, "mps 700 20000"))

    assert found == [("smaller", f"600 {min(20_000, memory - 30_000)}", 1)]


def test_nothing_above_the_quota_is_offered(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb", 4, profiles=("3g.40gb",)).hold(0, team="vision")
    cluster.team("vision", ceiling=1500, used=1000)

    assert changes(cluster, cluster.claim(-1, count=3)) == []
    assert changes(cluster, cluster.claim(-1)) == [("smaller", "3g.40gb", 1)]


def test_later_is_the_last_change_with_the_start_that_is_known(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", 2).hold(0)
    claim = cluster.claim(-1, count=2)
    start = NOON + timedelta(hours=1)

    found = nearest(state_of(cluster), claim, starts_at=start)

    assert [(change.kind, change.starts_at) for change in found] == [("fewer", NOON), ("later", start)]
    assert found[-1].claim == claim


def test_candidates_are_judged_by_closeness_with_every_model_before_a_second_of_one(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb").hold(0)
    cluster.node("b", "a100-80gb", 1)
    cluster.node("c", "l40s-48gb", 1)
    claim = cluster.claim(-1, models=("h100-80gb",))
    offered = [
        cluster.claim(-2, "1g.10gb", models=("a100-80gb",)),
        cluster.claim(-3, "mps 250 12000", models=("l40s-48gb",)),
        cluster.claim(-4, models=("a100-80gb",)),
        cluster.claim(-5, "3g.40gb", models=("a100-80gb",)),
    ]

    two = nearest(state_of(cluster), claim, offered, most=2)
    all_ = nearest(state_of(cluster), claim, offered)

    assert [change.claim.id for change in two] == [-4, -3]
    assert [change.claim.id for change in all_] == [-4, -5, -3, -2]


def test_what_no_board_offers_is_answered_by_what_there_is(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", 1)

    assert changes(cluster, cluster.claim(-1, models=("h100-80gb",))) == [("other", "whole l40s-48gb", 1)]


@few
@given(clusters())
def test_every_change_would_be_granted_and_is_no_larger_a_list_than_promised(cluster: Cluster) -> None:
    snapshot = second_half(cluster)
    state = EngineState.from_snapshot(snapshot, cluster.policy)

    for claim in snapshot.queue:
        found = nearest(state, claim)
        assert len(found) <= MOST_CHANGES
        assert found == nearest(state, claim)
        assert [change.far for change in found] == sorted(change.far for change in found)
        for change in found:
            assert replace(change.claim, id=claim.id) != claim
            grant = state.decide(change.claim)
            assert isinstance(grant, Grant)
            assert state.budget.allows(claim.team_id, grant.cost_milli)
