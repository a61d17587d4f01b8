"""Operators, agents' hellos and their reports lock devices before nodes: none of them ends another's work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import transaction

from nodeagent.protocol.messages import HealthFact, LeaseReport, Report
from portal.agents import admission, reports
from portal.agents.admission import admit
from portal.common.sql import execute
from portal.fleet import health
from portal.fleet.models import Device, HealthEvent, Node
from portal.leases.health_notices import take_out_of_work
from portal.leases.models import Lease, Placement
from tests.agents.test_enrolment import NONCE, Key, token
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)


class Rival:
    """Work in a transaction of its own, begun in the middle of another's and waited for until it is blocked."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], Any]) -> None:
        self._pool, self._work = pool, work
        self.found: Any = None

    def begin(self) -> None:
        self.found = meanwhile(self._work, self._pool)

    def before(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        """Begin when that step of the other's work is reached."""
        step = getattr(module, name)

        def first_the_rival(*args: Any, **kwargs: Any) -> Any:
            self.begin()
            return step(*args, **kwargs)

        patch.setattr(module, name, first_the_rival)


def by_hand(world: World, device: Device) -> Callable[[], HealthEvent]:
    """Return a quarantine that is not repeated when the database ends it."""
    operator = world.user("operator")
    return lambda: health.quarantine(device=device, actor=operator, reason="fan", now=world.now)


def test_a_quarantine_and_a_hello_of_the_same_node_both_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, key = build_world(), Key()
    admit(key.hello(token=token(world)), nonce=NONCE, now=world.now)
    device = Device.objects.filter(node__name="gpu-09").earliest("index")

    with ThreadPoolExecutor(1) as pool:
        rival = Rival(pool, by_hand(world, device))
        rival.before(monkeypatch, admission, "learn_devices")
        admit(key.hello(), nonce=NONCE, now=world.now)
        rival.found.result(timeout=60)

    device.refresh_from_db()
    assert device.health == "quarantined"


def failed(lease: Lease, *facts: HealthFact) -> Report:
    said = LeaseReport(lease.uid, lease.generation, "failed", code="x", detail="y")
    return Report(
        1, "boot-1", 1, Node.objects.get(pk=lease.node_id).desired_revision, (said,), (), health=facts
    )


def test_a_quarantine_and_a_report_that_fails_a_lease_and_finds_a_fault_both_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = build_world()
    lease = world.active()
    device = Placement.objects.select_related("device").get(lease=lease).device
    report = failed(lease, HealthFact(device.uuid, "79", "critical", "off the bus", "reboot_node"))

    with ThreadPoolExecutor(1) as pool:
        rival = Rival(pool, by_hand(world, device))
        rival.before(monkeypatch, reports, "see_health")
        assert reports.accept_report(lease.node_id, report)
        rival.found.result(timeout=60)

    device.refresh_from_db()
    assert (device.health, device.health_reason) == ("quarantined", "fan")
    assert sorted(HealthEvent.objects.values_list("code", flat=True)) == ["79", "by-hand"]
    assert Lease.objects.get(pk=lease.pk).state == "cleaning"


def test_clearing_waits_for_a_report_about_the_same_device_and_clears_what_it_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = build_world()
    node = world.nodes["gpu-01"]
    device = Device.objects.filter(node=node).earliest("index")
    health.see_health(node, [HealthFact(device.uuid, "63", "warning", "x", "drain")], now=world.now)
    operator = world.user("operator")

    with ThreadPoolExecutor(1) as pool:
        rival = Rival(pool, lambda: health.clear_health(device=device, actor=operator, now=world.now))
        rival.before(monkeypatch, health, "settle")
        with transaction.atomic():
            health.see_health(node, [HealthFact(device.uuid, "79", "critical", "y")], now=world.now)
        rival.found.result(timeout=60)

    device.refresh_from_db()
    assert device.health == "ok"
    assert not HealthEvent.objects.filter(cleared_at=None).exists()


def test_an_event_that_an_operator_clears_in_the_instant_of_a_report_stays_the_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = build_world()
    node = world.nodes["gpu-01"]
    device = Device.objects.filter(node=node).earliest("index")
    health.see_health(node, [HealthFact(device.uuid, "63", "warning", "x")], now=world.now)
    operator = world.user("operator")

    with ThreadPoolExecutor(1) as pool:
        rival = Rival(pool, lambda: health.see_health(node, [], now=world.now))
        with transaction.atomic():
            health.clear_health(device=device, actor=operator, now=world.now)
            rival.begin()
        rival.found.result(timeout=60)

    event = HealthEvent.objects.get()
    assert (event.cleared_by, event.is_cleared_by_hand) == ("operator", True)


def test_a_quarantine_that_the_database_ends_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = build_world()
    device = Device.objects.earliest("id")
    quarantine, tries = health.quarantine, []

    def once_deadlocked(**asked: Any) -> HealthEvent:
        tries.append(1)
        if len(tries) == 1:
            execute("DO $$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '40P01'; END $$")
        return quarantine(**asked)

    monkeypatch.setattr("portal.leases.health_notices.quarantine", once_deadlocked)

    take_out_of_work(device=device, actor=world.user("operator"), reason="fan", now=world.now)

    device.refresh_from_db()
    assert (len(tries), device.health) == (2, "quarantined")
