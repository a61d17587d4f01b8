"""Speed comes from doing little: these count looks instead of seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from scheduler.engine.state import EngineState
from tests.engine.builder import Cluster


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    look = EngineState.try_grant

    def counted(self: EngineState, claim: Any, shape: Any) -> Any:
        seen.append(claim.id)
        return look(self, claim, shape)

    monkeypatch.setattr(EngineState, "try_grant", counted)
    return seen


def test_of_many_equal_claims_one_failure_is_enough(cluster: Cluster, looks: list[int]) -> None:
    cluster.node("a", devices=4)
    for number in range(200):
        cluster.request(f"r{number}", team=f"t{number % 3}")

    turn = cluster.plan()

    assert (len(turn.grants), len(turn.waits)) == (4, 196)
    assert len(looks) == 5


def test_what_does_not_fit_once_is_not_tried_for_more_units(cluster: Cluster, looks: list[int]) -> None:
    cluster.node("a", devices=8).hold(0).hold(1).hold(2).hold(3).hold(4)
    cluster.request("four", count=4)
    for count in (5, 6, 7, 8):
        cluster.request(f"{count}", count=count)

    cluster.plan()

    assert len(looks) == 1


def test_a_forecast_looks_once_at_the_queue_and_never_at_what_nobody_submitted(
    cluster: Cluster, looks: list[int]
) -> None:
    cluster.node("a").hold(0, hours=1)
    cluster.node("b", "l40s-48gb").hold(0, hours=9)
    cluster.request("shares", "mps 100 1000", models=("l40s-48gb",))
    claim = cluster.claim(-1, models=("h100-80gb",))

    assert cluster.start_of(claim) == 1
    assert looks == [1]


def test_a_forecast_gives_up_after_a_bounded_number_of_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.node("a").hold(0, hours=1)
    for number in range(5):
        cluster.request(f"r{number}")
    monkeypatch.setattr(import_module("scheduler.engine.timeline"), "MOST_EVENTS", 3)

    found = cluster.forecast(cluster.claim(-1))[-1]

    assert found.starts_at is None
    assert found.reasons
