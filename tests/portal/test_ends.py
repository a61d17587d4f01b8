"""No lease ends after its end, and its steps are recorded in the order in which they were taken."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from nodeagent.protocol.messages import LeaseReport
from portal.agents.reports import accept_report, lose_forgotten
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.common.clock import db_now
from portal.common.invariants import broken
from portal.leases import lifecycle, preempting
from portal.leases.models import Lease, LeaseEvent
from portal.leases.states import EndReason
from portal.leases.transitions import lock_leases
from tests.agents.test_reports import Desk
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def steps(lease: Lease) -> list[tuple[str, datetime]]:
    return list(LeaseEvent.objects.filter(lease=lease).order_by("id").values_list("now", "at"))


def is_in_order(lease: Lease) -> bool:
    instants = [at for _now, at in steps(lease)]
    return instants == sorted(instants)


def release(world: World, lease: Lease, at: datetime) -> None:
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=at)


def fail(_world: World, lease: Lease, at: datetime) -> None:
    with transaction.atomic():
        lifecycle.fail_leases(lock_leases([lease.pk]), at=at, fault="gpu_lost: XID 79")


def forget(_world: World, lease: Lease, at: datetime) -> None:
    lose_forgotten(lease.node_id, seen_at=at, now=at)


def make_way(_world: World, lease: Lease, at: datetime) -> None:
    with transaction.atomic():
        lifecycle.end_leases(lock_leases([lease.pk]), reason=EndReason.MAINTENANCE, at=at)


def preempt(world: World, lease: Lease, at: datetime) -> None:
    waiting = world.submit("charlie")
    Lease.objects.filter(pk=lease.pk).update(preempt_at=at - SECOND, preempted_for=waiting)
    preempting.preempt_due(now=at)


def expire(_world: World, _lease: Lease, at: datetime) -> None:
    lifecycle.expire_due(now=at)


@pytest.mark.parametrize("end", [release, fail, forget, make_way, preempt, expire])
def test_a_lease_of_eight_seconds_is_billed_for_eight_however_late_it_is_ended(
    world: World, end: Callable[[World, Lease, datetime], None]
) -> None:
    lease = world.active(duration_s=8)

    end(world, lease, world.now + 32 * SECOND)

    world.gone(lease, at=world.now + 33 * SECOND)
    meter_all(now=world.now + 40 * SECOND)
    lease.refresh_from_db()
    assert (lease.ended_at, lease.end_reason) == (lease.not_after, "expired")
    assert UsageRecord.objects.get().seconds == 8
    assert lease.request.state == "fulfilled"
    assert broken() == []


def test_a_lease_that_the_database_refuses_to_end_keeps_no_other_from_ending(world: World) -> None:
    stuck, other = world.active(duration_s=600), world.active(duration_s=600)
    # As if an earlier release had let it go on after its end: no step may follow then.
    Lease.objects.filter(pk=stuck.pk).update(moved_at=world.now + 700 * SECOND)

    assert lifecycle.expire_due(now=world.now + 650 * SECOND) == 1

    other.refresh_from_db()
    stuck.refresh_from_db()
    assert (other.state, other.ended_at) == ("ending", world.now + 600 * SECOND)
    assert stuck.state == "active"


def test_a_lease_that_was_interrupted_ends_at_its_end_when_its_node_comes_back_later(world: World) -> None:
    lease = world.active(duration_s=600)
    lifecycle.interrupt_lost(now=world.now + 400 * SECOND)

    with transaction.atomic():
        lifecycle.resume_leases(lock_leases([lease.pk]), at=world.now + 700 * SECOND)

    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == ("cleaning", "expired")
    assert lease.ended_at == lease.not_after == world.now + 600 * SECOND


def test_what_its_holder_gives_back_after_it_had_to_go_is_billed_until_it_had_to_go(world: World) -> None:
    lease = world.active(duration_s=3600)
    waiting = world.submit("charlie")
    Lease.objects.filter(pk=lease.pk).update(preempt_at=world.now + 60 * SECOND, preempted_for=waiting)

    release(world, lease, world.now + 90 * SECOND)

    lease.refresh_from_db()
    assert (lease.ended_at, lease.end_reason) == (world.now + 60 * SECOND, "released")


def test_a_lease_interrupted_again_before_its_node_spoke_stays_in_order(world: World) -> None:
    lease = world.active(duration_s=3600)
    lifecycle.interrupt_lost(now=world.now + 400 * SECOND)
    with transaction.atomic():
        lifecycle.resume_leases(lock_leases([lease.pk]), at=world.now + 410 * SECOND)

    # Its node's last word is still the one at the start.
    lifecycle.interrupt_lost(now=world.now + 420 * SECOND)

    assert is_in_order(lease)
    assert steps(lease)[-1] == ("interrupted", world.now + 410 * SECOND)


def test_a_word_heard_before_the_last_step_is_recorded_at_that_step(world: World) -> None:
    lease = world.active()
    release(world, lease, world.now + 5 * SECOND)

    world.gone(lease, at=world.now + 2 * SECOND)

    lease.refresh_from_db()
    assert lease.clean_at == lease.ended_at == world.now + 5 * SECOND
    assert is_in_order(lease)


@pytest.mark.django_db(transaction=True)
def test_a_report_that_waits_for_a_release_comes_after_it() -> None:
    world = build_world()
    lease = world.active()
    frame = Desk(world).report(LeaseReport(lease.uid, lease.generation, "gone"))

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            (locked,) = lock_leases([lease.pk])
            report = meanwhile(lambda: accept_report(lease.node_id, frame), pool)
            assert not report.done()
            released_at = db_now()
            lifecycle.release_locked(locked, actor=world.user("bob"), now=released_at)
        assert report.result(timeout=60)

    lease.refresh_from_db()
    assert lease.state == "ended"
    assert lease.ended_at == released_at
    assert lease.clean_at is not None
    assert lease.clean_at > released_at
    assert is_in_order(lease)


def refuse(sql: str, values: list[object], match: str) -> None:
    with pytest.raises(IntegrityError, match=match), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, values)


def test_the_database_refuses_a_step_before_the_last_one(world: World) -> None:
    lease = world.active()

    with pytest.raises(IntegrityError, match="run backwards"), transaction.atomic():
        LeaseEvent.objects.create(lease=lease, was="active", now="ending", at=world.now - SECOND)


def test_the_database_refuses_to_stop_the_money_clock_after_the_end(world: World) -> None:
    lease = world.active(duration_s=60)

    with pytest.raises(IntegrityError, match="was to end"), transaction.atomic():
        LeaseEvent.objects.create(lease=lease, was="active", now="ending", at=world.now + 61 * SECOND)


def test_the_database_refuses_an_end_after_the_end_and_clean_before_it(world: World) -> None:
    lease = world.ended(seconds=60)
    late, early = lease.not_after + SECOND, lease.ended_at - SECOND

    refuse("UPDATE leases_lease SET ended_at = %s WHERE id = %s", [late, lease.pk], "ends after its end")
    refuse("UPDATE leases_lease SET not_after = %s WHERE id = %s", [early, lease.pk], "ends after its end")
    refuse("UPDATE leases_lease SET clean_at = %s WHERE id = %s", [early, lease.pk], "clean before")
