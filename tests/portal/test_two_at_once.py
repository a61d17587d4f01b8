"""Two who work at the same moment: locks come in one order, and a sentence instead of a failure at the commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client

from portal.common.errors import Conflict, Invalid
from portal.common.sql import execute, fetch
from portal.leases import bookings
from portal.leases.models import Lease
from portal.leases.transitions import lock_leases
from portal.quotas import services as quotas
from portal.quotas.cohorts import create_cohort, delete_cohort
from portal.quotas.models import Cohort, Quota
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile
from tests.portal.test_bookings import HOUR, booked, heard

pytestmark = pytest.mark.django_db(transaction=True)


def take_lease_at_once(lease: Lease) -> None:
    """Lock a lease as a report does that has its quota rows already; whoever waits for us must not hold it."""
    execute("SET LOCAL lock_timeout = '300ms'")
    lock_leases([lease.pk])


def test_a_booking_that_begins_waits_for_quota_before_it_holds_its_leases() -> None:
    world = build_world()
    lease = booked(world)
    at = world.now + HOUR
    heard(world, at)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            quotas.lock_lineages([lease.team_id])
            begins = meanwhile(lambda: bookings.start_booked(now=at), pool)
            assert not begins.done()
            take_lease_at_once(lease)
        assert begins.result(timeout=60) == 1

    lease.refresh_from_db()
    assert lease.state == "preparing"
    assert Quota.objects.get(team=lease.team).used_milli == lease.cost_milli


def test_a_booking_that_is_given_up_meanwhile_does_not_begin_and_takes_no_quota() -> None:
    world = build_world()
    lease = booked(world)
    at = world.now + HOUR
    heard(world, at)

    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        lock_leases([lease.pk])
        assert meanwhile(lambda: bookings.start_booked(now=at), pool).result(timeout=60) == 0

    lease.refresh_from_db()
    assert lease.state == "booked"
    assert Quota.objects.get(team=lease.team).used_milli == 0


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "once"}])
def test_a_booking_released_over_http_waits_for_its_request_before_it_holds_its_lease(
    key: dict[str, str],
) -> None:
    world = build_world()
    lease = booked(world)
    client = Client(headers={"Authorization": f"Bearer {world.token('bob', 'lease:write')}", **key})
    path = f"/api/v1/leases/{lease.uid}/release/"

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            fetch("SELECT 1 FROM leases_leaserequest WHERE id = %s FOR UPDATE", [lease.request_id])
            release = meanwhile(lambda: client.post(path, {}, "application/json"), pool)
            assert not release.done()
            take_lease_at_once(lease)
        answer = release.result(timeout=60)

    assert (answer.status_code, answer.json()["state"]) == (200, "ended")


@pytest.fixture
def lenders(transactional_db: None) -> tuple[World, Cohort]:
    """A world with a cohort that no team is in."""
    world = build_world()
    made = create_cohort(
        actor=world.user("operator"), rights=world.rights("operator"), name="pool", now=world.now
    )
    return world, made


def join(world: World, cohort: Cohort) -> None:
    quotas.set_quota(
        team=world.team("robotics"), actor=world.user("operator"), rights=world.rights("operator"),
        guaranteed_milli=0, ceiling_milli=4000, version=1, cohort_id=cohort.pk, now=world.now,
    )  # fmt: skip


def remove(world: World, cohort: Cohort) -> None:
    delete_cohort(
        actor=world.user("operator"), rights=world.rights("operator"), cohort_id=cohort.pk, now=world.now
    )


def test_a_cohort_that_a_team_joins_meanwhile_is_not_removed(lenders: tuple[World, Cohort]) -> None:
    world, cohort = lenders

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            join(world, cohort)
            removal = meanwhile(lambda: remove(world, cohort), pool)
        with pytest.raises(Conflict, match="Teams are in this cohort"):
            removal.result(timeout=60)

    assert Quota.objects.get(team__slug="robotics").cohort == cohort


def test_a_team_that_joins_a_cohort_removed_meanwhile_is_told_to_choose_another(
    lenders: tuple[World, Cohort],
) -> None:
    world, cohort = lenders

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            remove(world, cohort)
            joining = meanwhile(lambda: join(world, cohort), pool)
        with pytest.raises(Invalid) as told:
            joining.result(timeout=60)

    assert "just been removed" in str(told.value.fields["cohort"])
    assert Quota.objects.get(team__slug="robotics").cohort is None
    assert not Cohort.objects.exists()


def test_a_booking_above_its_quota_is_planned_anew_and_holds_nothing() -> None:
    world = build_world()
    lease = booked(world)
    Quota.objects.filter(team=lease.team).update(ceiling_milli=0, guaranteed_milli=0)
    at = world.now + HOUR + timedelta(days=1)
    heard(world, at)

    assert bookings.start_booked(now=at) == 0

    lease.refresh_from_db()
    assert (lease.state, lease.request.state) == ("ended", "queued")
    assert Quota.objects.get(team=lease.team).used_milli == 0
