"""The queue played forward lets leases go for better scores, as the turns to come will."""

from __future__ import annotations

import pytest

from scheduler.engine.policy import PolicyRules, Preempting
from tests.engine.preempting import Stage

BY_SCORE = PolicyRules(order="default", preempting=Preempting(by_score=True))
GRACE_H = BY_SCORE.preempting.grace_s / 3600
TRAINING = {"is_preemptible": True, "work": "training"}


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def one_board(stage: Stage) -> Stage:
    """One board, held by a long lease that agreed and has run for a minute."""
    stage.policy = BY_SCORE
    stage.node("a")
    stage.lease((1, "whole", 0), hours=20, ran_s=60, **TRAINING)  # type: ignore[arg-type]
    return stage


def test_a_place_is_taken_once_the_lease_has_run_its_least_time(one_board: Stage) -> None:
    short = one_board.request("short", hours=0.2, queued_s=0)

    start = one_board.start_of(short)

    # 540 s until it may be told, then the notice.
    assert start is not None
    assert 540 / 3600 + GRACE_H <= start < 0.5


@pytest.mark.parametrize(
    "policy", [PolicyRules(order="default"), PolicyRules(preempting=Preempting(by_score=True))]
)
def test_without_scores_the_lease_runs_to_its_end(one_board: Stage, policy: PolicyRules) -> None:
    one_board.policy = policy

    assert one_board.start_of(one_board.request("short", hours=0.2, queued_s=0)) == 20


def test_who_waits_long_enough_takes_from_who_is_better_now(stage: Stage) -> None:
    stage.policy = PolicyRules(order="default", preempting=Preempting(by_score=True, factor=100.0))
    stage.node("a")
    stage.lease((1, "whole", 0), hours=20, ran_s=3600, **TRAINING)  # type: ignore[arg-type]
    waits = stage.request("waits", hours=1, queued_s=0, **TRAINING)

    start = stage.start_of(waits)

    assert stage.told() == {}
    assert start is not None
    assert GRACE_H < start < 19


def test_who_was_sent_away_queues_again_before_who_stands_lower(one_board: Stage) -> None:
    one_board.request("short", hours=1, queued_s=0)
    last = one_board.request("last", hours=1, queued_s=0, priority=-1)

    start = one_board.start_of(last)

    # After the short one what is left of the lease comes first: 20 hours, and a minute for what was lost.
    assert start is not None
    assert 20.9 < start < 21.5


def test_a_gang_takes_whole_nodes_and_what_is_left_over_goes_to_others(stage: Stage) -> None:
    stage.policy = BY_SCORE
    for name, first in (("a", 1), ("b", 3)):
        stage.node(name, devices=2)
        stage.lease((first, "whole", 0), (first + 1, "whole", 0), hours=200, ran_s=60, **TRAINING)  # type: ignore[arg-type]
    gang = stage.request("gang", count=1, nodes=2, hours=0.1, queued_s=0)
    pair = stage.request("pair", count=1, hours=0.5, queued_s=0)

    starts = [stage.start_of(claim) for claim in (gang, pair)]

    assert starts[0] is not None
    assert starts[0] < 0.5
    assert starts[1] == starts[0]


def test_what_will_be_told_in_this_turn_is_free_after_the_notice(stage: Stage) -> None:
    stage.policy = BY_SCORE
    stage.node("a")
    stage.lease((1, "whole", 0), hours=20, ran_s=3600, **TRAINING)  # type: ignore[arg-type]
    short = stage.request("short", hours=0.2)

    assert stage.told() != {}
    assert stage.start_of(short) == pytest.approx(GRACE_H)
