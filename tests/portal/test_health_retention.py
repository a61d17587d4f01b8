"""Health events that were cleared long ago are forgotten; open ones and an operator's word that still counts stay."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as portal_settings

from nodeagent.protocol.messages import HealthFact
from portal.fleet import health_retention
from portal.fleet.health import clear_health, see_health
from portal.fleet.health_retention import forget_health
from portal.fleet.models import Device, HealthEvent, Node
from scheduler import tasks
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
KEPT = timedelta(days=400)


@pytest.fixture
def device(world: World) -> Device:
    return Device.objects.filter(node__name="gpu-01").earliest("index")


def events(device: Device, *codes: str, **fields: Any) -> None:
    said = {"severity": "warning", "detail": "d", "at": fields.get("cleared_at"), **fields}
    HealthEvent.objects.bulk_create(
        HealthEvent(node=device.node, device=device, code=code, **said) for code in codes
    )


def left() -> list[str]:
    return sorted(HealthEvent.objects.values_list("code", flat=True))


def test_what_was_cleared_longer_ago_than_is_kept_goes_and_the_rest_stays(
    world: World, device: Device
) -> None:
    events(device, "old", cleared_at=world.now - KEPT - DAY)
    events(device, "new", cleared_at=world.now - KEPT)

    assert [forget_health(now=world.now) for _ in range(2)] == [1, 0]
    assert left() == ["new"]
    assert forget_health(now=world.now + timedelta(seconds=1)) == 1


def test_an_open_event_stays_however_old_and_quiet_it_is(world: World, device: Device) -> None:
    long_ago = world.now - 10 * KEPT
    events(device, "79", at=long_ago, unreported_at=long_ago, cleared_at=None, severity="critical")
    HealthEvent.objects.create(
        node=device.node, code="events_unwatched", severity="warning", detail="d", at=long_ago
    )

    assert forget_health(now=world.now) == 0
    assert left() == ["79", "events_unwatched"]


def test_how_long_they_are_kept_is_a_setting(world: World, device: Device, settings: Any) -> None:
    events(device, "a", cleared_at=world.now - 3 * DAY)

    settings.HEALTH_KEEP_DAYS = 4
    early = forget_health(now=world.now)
    settings.HEALTH_KEEP_DAYS = 2

    assert (early, forget_health(now=world.now)) == (0, 1)


def test_many_go_in_batches_the_oldest_first_and_a_run_has_an_end(
    world: World, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_retention, "BATCH", 2)
    monkeypatch.setattr(health_retention, "MOST_BATCHES", 2)
    for days in range(1, 8):
        events(device, f"c{days}", cleared_at=world.now - KEPT - days * DAY)

    first = forget_health(now=world.now)

    assert (first, left()) == (4, ["c1", "c2", "c3"])
    assert [forget_health(now=world.now) for _ in range(2)] == [3, 0]


def test_an_operators_word_stays_while_the_agent_may_remember_the_fault_and_goes_after_a_boot(
    world: World, device: Device
) -> None:
    cable = HealthFact(device.uuid, "54", "critical", "at noon", "drain")
    see_health(device.node, [cable], now=world.now)
    clear_health(device=device, actor=world.user("operator"), now=world.now)
    later = world.now + KEPT + DAY

    kept = forget_health(now=later)
    still_answered = see_health(device.node, [cable], now=later)
    Node.objects.filter(pk=device.node_id).update(boot_id="boot-2")

    assert (kept, still_answered) == (0, [])
    assert forget_health(now=later) == 1


def test_what_an_operator_cleared_of_other_faults_goes_like_the_rest(world: World, device: Device) -> None:
    see_health(device.node, [HealthFact(device.uuid, "79", "critical", "gone")], now=world.now)
    clear_health(device=device, actor=world.user("operator"), now=world.now)

    assert forget_health(now=world.now + KEPT + DAY) == 1


def test_nothing_refers_to_a_health_event() -> None:
    """Whoever adds a row that does has to say which events it keeps from being forgotten."""
    assert HealthEvent._meta.related_objects == ()


def test_forgetting_is_on_the_clock_of_the_workers() -> None:
    entry = portal_settings.CELERY_BEAT_SCHEDULE["forget_health"]

    assert entry["task"] == tasks.forget_health.name
    assert entry["schedule"] == 3600.0


@pytest.mark.parametrize("days", ["0", "36501"])
def test_a_setting_that_makes_no_sense_is_refused_at_start(days: str) -> None:
    start = subprocess.run(
        [sys.executable, "-c", "import portal.settings"],
        env={**os.environ, "BERTH_HEALTH_KEEP_DAYS": days},
        capture_output=True,
        text=True,
    )

    assert start.returncode != 0
    assert "BERTH_HEALTH_KEEP_DAYS" in start.stderr
