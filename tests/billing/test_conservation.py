"""Each device's time of a month: what it went to adds up to what there was, and a wrong book shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from portal.billing.books import verify_books
from portal.billing.conservation import CapacityAccount, capacity_of, lease_times, together
from portal.billing.metering import meter_all
from portal.billing.periods import period_of
from portal.catalog.models import Rate
from portal.fleet.models import Device, HealthEvent, MaintenanceWindow, Node, NodePresence, Profile
from portal.fleet.presence import note_presence
from portal.fleet.services import cordon, uncordon
from portal.leases import lifecycle
from tests.portal.builders import World, build_world

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
MIN = timedelta(minutes=1)


@pytest.fixture
def month(db: None) -> World:
    """The small installation an hour into a month; its nodes are as old as that month."""
    world = build_world(BEGIN + 60 * MIN)
    Node.objects.update(created_at=BEGIN)
    return world


def test_a_months_time_adds_up_by_device_and_names_the_leases(month: World) -> None:
    world, node = month, month.nodes["gpu-01"]
    request = world.submit("bob", "h100", duration_s=3600, at=BEGIN + 5 * MIN)
    (lease,) = world.turn(BEGIN + 5 * MIN)
    world.ready(lease, at=BEGIN + 7 * MIN)
    lease.refresh_from_db()
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=BEGIN + 27 * MIN)
    world.gone(lease, at=BEGIN + 30 * MIN)
    slices = [world.active("bob", at=BEGIN + 40 * MIN, duration_s=7200) for _ in range(2)]
    NodePresence.objects.create(node=node, began_at=BEGIN, ended_at=BEGIN + 50 * MIN)
    MaintenanceWindow.objects.create(
        starts_at=BEGIN + 32 * MIN, ends_at=BEGIN + 36 * MIN, reason="fans", created_at=BEGIN
    ).nodes.add(node)
    whole, cut = lease.placements.get().device, slices[0].placements.get().device
    HealthEvent.objects.create(
        node=node,
        device=whole,
        code="xid-79",
        severity="critical",
        detail="",
        at=BEGIN,
        cleared_at=BEGIN + 5 * MIN,
    )
    cordon(node=world.nodes["gpu-03"], actor=world.user("operator"), reason="fans", now=BEGIN + 20 * MIN)
    uncordon(node=world.nodes["gpu-03"], actor=world.user("operator"), now=BEGIN + 30 * MIN)
    meter_all(now=world.now)

    by_device = {one.uuid: one.account for one in capacity_of(period_of(world.now), now=world.now)}

    assert {account.difference for account in by_device.values()} == {0}
    assert {account.capacity for account in by_device.values()} == {60 * 60 * 1000}
    in_minutes = {kind: n / 60_000 for kind, n in by_device[whole.uuid].kinds.items() if n}
    held = sum(one.share_milli for one in slices) / 1000 if cut == whole else 0
    assert in_minutes["fault"] == 5
    assert (in_minutes["preparing"], in_minutes["cleaning"]) == (2, 3)
    assert in_minutes["maintenance"] == 4
    assert in_minutes["billed"] == pytest.approx(20 + 20 * held)
    assert in_minutes["unknown"] == pytest.approx(10 * (1 - held))
    silent = Device.objects.filter(node=world.nodes["gpu-03"]).values_list("uuid", flat=True)
    away = [{kind: n // 60_000 for kind, n in by_device[uuid].kinds.items() if n} for uuid in silent]
    assert away == [{"maintenance": 10, "unknown": 50}] * len(silent)
    assert together(by_device.values()).capacity == len(by_device) * 3_600_000
    found = {one.uid: one.kinds for one in lease_times(period_of(world.now), whole.pk, now=world.now)}
    assert found[lease.uid] == {"preparing": 120_000, "billed": 1_200_000, "cleaning": 180_000}
    assert request.pk == lease.request_id


def test_what_no_slice_fits_into_is_stranded_and_has_a_price(month: World) -> None:
    world = month
    NodePresence.objects.create(node=month.nodes["gpu-01"], began_at=BEGIN, ended_at=world.now)
    slices = [world.active("bob", at=BEGIN + n * MIN, duration_s=7200) for n in range(1, 7)]
    device = slices[0].placements.get().device
    period = period_of(world.now)

    def account() -> CapacityAccount:
        return next(one.account for one in capacity_of(period, now=world.now) if one.uuid == device.uuid)

    assert (account().kinds["stranded"], account().stranded_micro) == (0, 0)
    last = world.active("charlie", at=BEGIN + 30 * MIN, duration_s=7200)
    assert {one.placements.get().device for one in (*slices, last)} == {device}
    price = Rate.objects.get(device_model=device.model).micro_per_hour

    found = account()

    # The eighth slice of memory is left, in which nothing can begin.
    since = min(event.at for event in last.events.all())
    stranded = (1000 - 7 * last.share_milli) * int((world.now - since).total_seconds())
    assert found.kinds["stranded"] == stranded > 0
    assert round(found.stranded_micro) == stranded * price // 3_600_000
    assert found.difference == 0
    Profile.objects.create(
        device_model=device.model, name="0g", size="0g", slices=1, starts=[7], memory_mib=1, max_instances=1,
        share_milli=1,
    )  # fmt: skip
    assert account().kinds["stranded"] == 0


def test_a_second_that_the_books_lack_is_a_difference_and_fails_the_proof(month: World) -> None:
    world = month
    world.ended("bob", "h100", seconds=600, at=BEGIN + 5 * MIN)
    meter_all(now=world.now)
    period = period_of(world.now)
    assert [
        check.wrong for check in verify_books(period, now=world.now) if check.name == "capacity_adds_up"
    ] == [()]

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE billing_usagerecord SET seconds = seconds - 1, share_milli_seconds = (seconds - 1) * share_milli"
        )
        cursor.execute("SET LOCAL session_replication_role = origin")

    (check,) = [check for check in verify_books(period, now=world.now) if check.name == "capacity_adds_up"]
    assert len(check.wrong) == 1
    assert "-1000" in check.wrong[0]


def test_presence_grows_while_a_node_is_heard_and_a_gap_begins_anew(month: World) -> None:
    node, at = month.nodes["gpu-01"], month.now

    def heard(minutes: int) -> None:
        Node.objects.filter(pk=node.pk).update(last_seen_at=at + minutes * MIN)
        note_presence(now=at + minutes * MIN)

    for minutes in (0, 1, 2, 10, 11):
        heard(minutes)
    note_presence(now=at + 20 * MIN)

    found = NodePresence.objects.filter(node=node).values_list("began_at", "ended_at")
    assert list(found) == [(at, at + 2 * MIN), (at + 10 * MIN, at + 11 * MIN)]
