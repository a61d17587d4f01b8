from __future__ import annotations

import pytest

from scheduler.engine import plan
from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.model import PolicyRules
from tests.engine.builder import Cluster


def test_higher_priority_goes_first(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("early")
    cluster.request("urgent", priority=10)

    turn = cluster.plan()

    assert list(turn.grants) == ["urgent"]


def test_equal_priority_goes_by_waiting_time_and_then_by_id(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    cluster.request("late", queued_s=9)
    cluster.request("early", queued_s=3)
    cluster.request("twin of early", queued_s=3)

    turn = cluster.plan()

    assert list(turn.grants) == ["early", "twin of early"]
    assert turn.waits["late"].position == 1


def test_a_claim_that_cannot_start_blocks_nobody_behind_it(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0)
    cluster.request("pair", count=2)
    cluster.request("single")

    turn = cluster.plan()

    assert list(turn.grants) == ["single"]
    assert turn.code("pair") == "no_capacity"


def test_positions_count_only_claims_that_can_ever_start(cluster: Cluster) -> None:
    cluster.node("a").hold(0)
    cluster.request("first")
    cluster.request("never", count=9)
    cluster.request("second")

    turn = cluster.plan()

    assert [turn.waits[name].position for name in ("first", "second")] == [1, 2]
    assert turn.waits["never"].is_impossible


def test_an_empty_fleet_and_an_empty_queue_are_fine(cluster: Cluster) -> None:
    assert cluster.plan().grants == {}

    cluster.request("somebody")

    assert cluster.plan().code("somebody") == "no_such_device"


@pytest.mark.parametrize("policy", [PolicyRules(order="astrology"), PolicyRules(place="astrology")])
def test_an_unknown_policy_is_refused_and_the_choices_are_named(
    cluster: Cluster, policy: PolicyRules
) -> None:
    with pytest.raises(UnknownPolicy, match="choose one of") as caught:
        plan(cluster.snapshot(), policy)

    assert caught.value.code == "unknown_policy"
