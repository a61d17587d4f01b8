"""A cycle says what it did: in the log, to Prometheus, and to operators."""

from __future__ import annotations

import logging

import pytest
from django.test import Client
from redis.exceptions import ConnectionError as RedisAway

from portal.common.live import redis_client
from portal.policies import cycles
from scheduler import cycle
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_recorded() -> None:
    redis_client().delete("berth:cycles", "berth:cycles_decided", "berth:cycle_sums")


def test_a_cycle_that_grants_is_recorded_with_all_its_steps(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.submit("bob", "h100", count=8)
    world.submit("bob", "h100", count=8)

    with caplog.at_level(logging.INFO, logger="portal.policies.cycles"):
        cycle.run()

    (record,) = cycles.last_cycles() or []
    assert (record.seen, record.granted, record.waiting) == (2, 1, 1)
    assert tuple(record.steps_ms) == cycles.STEPS
    assert all(took >= 0 for took in record.steps_ms.values())
    assert "2 seen, 1 granted, 1 waiting" in caplog.text
    assert "1 lock" in caplog.text
    assert "6 preempt" in caplog.text


def test_a_cycle_with_nothing_to_do_is_not_recorded(world: World) -> None:
    cycle.run()

    assert cycles.last_cycles() == []


def test_cycles_that_decide_nothing_do_not_push_out_those_that_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycles, "KEPT", 2)
    world.submit("bob", "h100", count=8)
    world.submit("bob", "h100", count=8)
    for _ in range(4):
        cycle.run()

    assert [record.granted for record in cycles.last_cycles() or []] == [0, 0]
    assert [record.granted for record in cycles.last_cycles(decided=True) or []] == [1]


def test_prometheus_counts_each_step_once_a_cycle(world: World, client: Client) -> None:
    world.submit("bob", "h100", count=8)
    cycle.run()

    text = client.get("/metrics").content.decode()

    assert 'berth_cycle_step_seconds_count{step="plan"} 1.0' in text
    assert 'berth_cycle_step_seconds_bucket{le="+Inf",step="commit"} 1.0' in text
    assert 'berth_cycle_requests_total{outcome="granted"} 1.0' in text


def test_the_ring_keeps_the_newest_cycles(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycles, "KEPT", 2)
    for _ in range(3):
        world.submit("bob", "h100", count=1)
        cycle.run()

    found = cycles.last_cycles() or []
    assert len(found) == 2
    assert found[0].at > found[1].at


def test_without_redis_a_cycle_goes_on_and_its_record_is_unknown(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise RedisAway("away")

    world.submit("bob", "h100", count=8)
    monkeypatch.setattr(cycles, "redis_client", away)

    assert cycle.run().granted == 1
    assert cycles.last_cycles() is None
    assert "The record cannot be read" in signed_in("operator").get("/operations/cycles/").content.decode()


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "finance"])
def test_cycles_are_for_operators(signed_in: SignedIn, name: str) -> None:
    assert signed_in(name).get("/operations/cycles/").status_code == 403


def test_the_page_shows_each_cycle_with_its_steps(world: World, signed_in: SignedIn) -> None:
    world.submit("bob", "h100", count=8)
    cycle.run()

    page = signed_in("operator").get("/operations/cycles/").content.decode()

    assert "Read the snapshot" in page
    assert page.count('<rect class="cycle-') == len(cycles.STEPS)
