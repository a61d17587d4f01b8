"""Old steps that run backwards, and ends after the end: mended in open months, noted in closed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from portal.audit.models import AuditEntry
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.periods import period_of
from portal.common.invariants import broken
from portal.leases.models import Lease, LeaseEvent
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def corrupt(sql: str, values: list[object]) -> None:
    """Change rows as they could be before the database refused it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, values)
        cursor.execute("SET LOCAL session_replication_role = origin")


def move_step(lease: Lease, step: str, by: timedelta) -> None:
    corrupt(
        "UPDATE leases_leaseevent SET at = at + %s WHERE lease_id = %s AND now = %s", [by, lease.pk, step]
    )


def overrun(lease: Lease, by: timedelta) -> None:
    """Let a lease have ended so long after its end, as a late release once did."""
    corrupt("UPDATE leases_lease SET not_after = ended_at - %s WHERE id = %s", [by, lease.pk])


def names() -> set[str]:
    return {breach.invariant.name for breach in broken()}


def test_without_write_it_says_what_it_would_do_and_changes_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = world.ended(seconds=600)
    move_step(lease, "cleaning", -3 * SECOND)

    call_command("repair_lease_events")

    said = capsys.readouterr().out
    assert f"{lease.uid}: cleaning" in said
    assert "1 leases would be mended" in said
    assert names() == {"events_run_forward"}
    assert not AuditEntry.objects.filter(action="lease.events_repaired").exists()


def test_steps_that_run_backwards_are_put_in_order_and_the_bill_stays(world: World) -> None:
    lease = world.ended(seconds=600)
    meter_all(now=world.now)
    for step in ("cleaning", "ended"):
        move_step(lease, step, -3 * SECOND)
    corrupt("UPDATE leases_lease SET clean_at = ended_at - %s WHERE id = %s", [3 * SECOND, lease.pk])
    assert {"events_run_forward", "usage_tiles"} <= names()

    call_command("repair_lease_events", "--write")

    lease.refresh_from_db()
    assert broken() == []
    assert lease.clean_at == lease.ended_at
    assert UsageRecord.objects.get().seconds == 600
    assert AuditEntry.objects.filter(action="lease.events_repaired", target=lease.uid).exists()


def test_an_end_after_the_end_is_moved_there_and_metered_anew(world: World) -> None:
    lease = world.ended(seconds=32)
    meter_all(now=world.now)
    overrun(lease, 24 * SECOND)
    assert names() == {"no_lease_ends_after_its_end"}

    call_command("repair_lease_events", "--write")
    call_command("repair_lease_events", "--write")

    lease.refresh_from_db()
    assert broken() == []
    assert lease.ended_at == lease.not_after
    assert UsageRecord.objects.get().seconds == 8
    assert AuditEntry.objects.filter(action="lease.events_repaired").count() == 1


def test_a_closed_month_is_left_as_it_is_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    lease = world.ended(seconds=32, at=datetime(2026, 2, 3, 9, tzinfo=UTC))
    close_period(period=period_of(datetime(2026, 2, 5, tzinfo=UTC)), actor=None, now=world.now)
    overrun(lease, 24 * SECOND)
    steps = list(LeaseEvent.objects.values_list("id", "at"))

    call_command("repair_lease_events", "--write")

    assert "1 reach into closed months and stay" in capsys.readouterr().out
    assert list(LeaseEvent.objects.values_list("id", "at")) == steps
    assert UsageRecord.objects.get().seconds == 32
    assert AuditEntry.objects.filter(action="lease.events_stay", target=lease.uid).exists()
    assert broken() == []


def test_steps_cannot_be_rewritten_after_a_repair(world: World) -> None:
    overrun(world.ended(seconds=32), 24 * SECOND)

    call_command("repair_lease_events", "--write")

    with pytest.raises(Exception, match="append-only"), transaction.atomic():
        LeaseEvent.objects.update(at=world.now)
