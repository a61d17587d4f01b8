"""Claims of one turn placed together: more are served, nobody loses, and the same input gives the same plan."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from scheduler.engine import EngineState, forecast, plan
from scheduler.engine import joint_placement as joint_module
from scheduler.engine.model import Grant, Held, PolicyRules, Snapshot
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.shape import shape_of
from tests.engine.builder import NOON, Cluster
from tests.engine.oracle import is_legal_on
from tests.engine.test_properties import clusters, few, second_half, stored, within

EITHER = ("h100-80gb", "a100-80gb")


def one_after_another(snapshot: Snapshot, cluster: Cluster) -> list[Grant]:
    """What queue order alone grants."""
    state = EngineState.from_snapshot(snapshot, cluster.policy)
    return joint_module.serve_in_order(state, Lineup(snapshot, cluster.policy))[0]


def names(cluster: Cluster, grants: list[Grant]) -> set[str]:
    return {cluster.names[grant.claim_id] for grant in grants}


def test_a_request_for_any_model_leaves_the_only_board_of_its_model_to_the_next(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb")
    cluster.node("b", "a100-80gb")
    cluster.request("any", models=EITHER)
    cluster.request("hopper", models=("h100-80gb",))
    assert names(cluster, one_after_another(cluster.snapshot(), cluster)) == {"any"}

    turn = cluster.plan()

    assert (turn.node("any"), turn.node("hopper")) == ("b", "a")
    assert not turn.waits


def test_a_slice_leaves_the_idle_board_to_the_request_for_a_whole_one(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb", 2)
    cluster.node("b", "a100-80gb", 3, modes=frozenset({"mig"}))
    cluster.request("slice", "1g.10gb")
    cluster.request("pair", count=2)
    assert names(cluster, one_after_another(cluster.snapshot(), cluster)) == {"slice"}

    turn = cluster.plan()

    assert turn.node("pair") == "a"
    assert turn.node("slice") == "b"


def test_shares_are_packed_by_memory_and_compute_when_that_serves_more(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(place="spread")
    cluster.node("a", "l40s-48gb", 2)
    for number, flavor in enumerate(("mps 400 12000", "mps 500 20000", "mps 700 4000")):
        cluster.request(f"r{number}", flavor)
    snapshot = cluster.snapshot()
    assert len(one_after_another(snapshot, cluster)) == 2

    assert len(plan(snapshot, cluster.policy).grants) == 3


def test_a_forecast_says_now_for_what_the_turn_places_together(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb")
    cluster.node("b", "a100-80gb")
    cluster.request("any", models=EITHER, hours=2)
    hopper = cluster.request("hopper", models=("h100-80gb",), hours=3)
    next_one = cluster.claim(-1, models=("h100-80gb",))

    found = cluster.forecast(hopper, next_one)

    assert found[hopper.id].starts_at == NOON
    assert found[-1].starts_at == NOON + timedelta(hours=3)


def test_nothing_is_tried_again_where_all_ask_for_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = counted(monkeypatch)
    cluster.node("a", "h100-80gb", 2)
    for number in range(9):
        cluster.request(f"r{number}")

    cluster.plan()

    assert tries == []


def test_nothing_is_tried_again_where_what_was_granted_could_stand_nowhere_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = counted(monkeypatch)
    cluster.node("a", "h100-80gb")
    cluster.node("b", "a100-80gb").hold(0)
    cluster.request("any", models=EITHER)
    cluster.request("hopper", models=("h100-80gb",))

    turn = cluster.plan()

    assert (set(turn.grants), turn.codes("hopper")[0]) == ({"any"}, "behind")
    assert tries == []


def test_the_number_of_sequences_tried_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = counted(monkeypatch)
    cluster.node("a", "h100-80gb", 2)
    for number in range(40):
        cluster.request(f"r{number}", ("whole", "3g.40gb", "4g.40gb", "2g.20gb")[number % 4])

    cluster.plan()

    assert 1 <= len(tries) <= joint_module.MOST_PASSES
    assert max(tries) <= joint_module.MOST_GRANTS + joint_module.MOST_CANDIDATES


def test_a_share_in_a_host_placement_that_stood_alone_is_not_taken_back(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", 2)
    device = cluster.devices[1]
    host = Held(
        1, 0, device.grid, "mps", cluster.team_id("vision"), None, NOON, 1000, device.memory_mib, True
    )
    cluster.held.append(host)
    cluster.request("small", "mps 300 4000")
    cluster.request("whole", count=2)

    turn = cluster.plan()

    assert turn.places("small") == [(1, 0)]
    assert set(turn.waits) == {"whole"}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the sequences tried."""
    tries: list[int] = []
    attempt = joint_module._try

    def noted(state: EngineState, sequence: Any) -> Any:
        tries.append(len(sequence))
        return attempt(state, sequence)

    monkeypatch.setattr(joint_module, "_try", noted)
    return tries


@few
@given(clusters())
def test_every_line_of_equal_claims_gets_at_least_what_it_gets_one_after_another(cluster: Cluster) -> None:
    snapshot = second_half(cluster)

    found = {grant.claim_id for grant in plan(snapshot, cluster.policy).grants}

    assert {grant.claim_id for grant in one_after_another(snapshot, cluster)} <= found


@few
@given(clusters())
def test_a_state_after_placing_together_is_the_state_of_its_grants(cluster: Cluster) -> None:
    snapshot = second_half(cluster)
    state = EngineState.from_snapshot(snapshot, cluster.policy)
    queue = Lineup(snapshot, cluster.policy).ordered(snapshot.queue)

    grants, waiting = joint_module.serve_together(state, queue, joint_module.serve_in_order(state, queue))

    after = stored(snapshot, tuple(grants))
    fresh = EngineState.from_snapshot(replace(after, queue=()), cluster.policy)
    for claim, _ in waiting:
        shape = shape_of(claim, cluster.policy)
        assert (state.spots(shape) is None) == (fresh.spots(shape) is None)
        assert state.budget.headroom(claim.team_id) == fresh.budget.headroom(claim.team_id)
    for device in after.devices:
        assert is_legal_on(device, [h for h in after.held if h.device_id == device.id], cluster.policy)
    assert all(within(was, now) for was, now in zip(snapshot.quotas, after.quotas, strict=True))


@few
@given(clusters())
def test_the_forecast_of_now_agrees_with_the_turn_even_when_placed_together(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    starts = forecast(snapshot, cluster.policy, snapshot.queue)

    now = {claim_id for claim_id, found in starts.items() if found.starts_at == NOON}

    assert now == {grant.claim_id for grant in plan(snapshot, cluster.policy).grants}
