"""Long requests that cannot be stopped leave a part of the fleet free for shorter ones, where the policy says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.engine.policy import PolicyRules, Preempting
from tests.engine.builder import Cluster

RULES = PolicyRules(order="default", keep_short=0.3)


@pytest.fixture
def one_left(cluster: Cluster) -> Cluster:
    """Ten boards of which one is idle."""
    node = cluster.node("a", devices=10)
    for index in range(9):
        node.hold(index)
    cluster.policy = RULES
    return cluster


def test_the_last_board_stays_free_of_long_requests_and_goes_to_a_short_one(one_left: Cluster) -> None:
    one_left.request("long", hours=100)
    one_left.request("short", hours=0.5)

    assert set(one_left.plan().grants) == {"short"}


def test_a_long_request_hears_that_others_wait_for_more_than_is_idle(one_left: Cluster) -> None:
    one_left.request("long", hours=100)
    one_left.request("short", hours=0.5, count=2)

    turn = one_left.plan()

    assert turn.grants == {}
    assert turn.codes("long") == ["kept_for_short"]


def test_nothing_is_kept_for_nobody(one_left: Cluster) -> None:
    one_left.request("long", hours=100)

    assert set(one_left.plan().grants) == {"long"}


def test_nothing_is_kept_unless_the_policy_says_so(one_left: Cluster) -> None:
    one_left.policy = PolicyRules(order="default")
    one_left.request("long", hours=100)
    one_left.request("short", hours=0.5, count=2)

    assert set(one_left.plan().grants) == {"long"}


def test_what_goes_for_better_scores_once_it_runs_need_not_leave_anything_free(one_left: Cluster) -> None:
    one_left.policy = PolicyRules(order="default", keep_short=0.3, preempting=Preempting(by_score=True))
    one_left.request("long", hours=100, is_preemptible=True, work="training")
    one_left.request("firm", hours=100, work="training")

    turn = one_left.plan()

    assert set(turn.grants) == {"long"}


def test_what_could_then_never_start_is_exempt(cluster: Cluster) -> None:
    cluster.node("a", devices=10)
    cluster.policy = RULES
    cluster.request("whole", hours=100, count=10)

    assert set(cluster.plan().grants) == {"whole"}


def test_grants_of_the_same_turn_count(cluster: Cluster) -> None:
    cluster.node("a", devices=10)
    cluster.policy = RULES
    for number in range(10):
        cluster.request(f"long {number}", hours=100)

    turn = cluster.plan()

    assert len(turn.grants) == 8
    assert [wait.reasons[0].code for wait in turn.waits.values()] == ["kept_for_short"] * 2


def test_orders_that_know_no_lengths_keep_nothing(one_left: Cluster) -> None:
    one_left.policy = PolicyRules(order="priority_fifo", keep_short=0.3)
    one_left.request("long", hours=100)
    one_left.request("short", hours=0.5, count=2)

    assert set(one_left.plan().grants) == {"long"}


def test_played_forward_a_long_one_leaves_as_much_free_while_others_wait(cluster: Cluster) -> None:
    node = cluster.node("a", devices=10)
    for index in range(10):
        node.hold(index, hours=1 + index)
    long = cluster.request("long", hours=100)
    cluster.request("wide", hours=1, count=10)

    cluster.policy = replace(RULES, backfill="none", keep_short=0.0)
    without = cluster.start_of(long)
    cluster.policy = replace(RULES, backfill="none")

    # 11 boards are asked of 10, so that two must be idle behind it.
    assert without == 1
    assert cluster.start_of(long) == 3
