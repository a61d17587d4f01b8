"""A step is taken from the state that allows it, or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from portal.common.errors import Conflict, Invalid
from portal.common.states import IllegalMove
from portal.fleet.maintenance import cancel_window, change_window, make_window
from portal.leases import lifecycle, transitions
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseEvent
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_a_step_that_the_table_does_not_have_is_a_mistake_and_changes_nothing(world: World) -> None:
    lease = world.active()
    before = LeaseEvent.objects.count()

    with pytest.raises(IllegalMove):
        transitions.move_all(transitions.lock_leases([lease.pk]), "ended", at=world.now)

    lease.refresh_from_db()
    assert (lease.state, LeaseEvent.objects.count()) == ("active", before)


@pytest.mark.parametrize(
    ("row", "was", "wrong"),
    [("leases_lease", "active", "ended"), ("leases_leaserequest", "granted", "awaiting_approval")],
)
def test_the_database_refuses_such_a_step_too(row: str, was: str, wrong: str, world: World) -> None:
    world.active()

    with pytest.raises(IntegrityError, match="cannot follow"), transaction.atomic():
        transitions.execute(f"UPDATE {row} SET state = %s WHERE state = %s", [wrong, was])


def extend(world: World, lease: Lease, extra: timedelta, at: timedelta = timedelta(0)) -> None:
    extend_lease(lease=lease, actor=world.user("bob"), extra_s=int(extra.total_seconds()), now=world.now + at)


def test_a_lease_whose_time_is_up_is_not_extended_although_it_still_says_active(world: World) -> None:
    lease = world.active()

    with pytest.raises(Conflict, match="active"):
        extend(world, lease, HOUR, at=HOUR)


def test_a_lease_that_must_make_room_is_not_extended(world: World) -> None:
    lease, waiting = world.active(), world.submit("charlie")
    Lease.objects.filter(pk=lease.pk).update(preempt_at=world.now + HOUR / 2, preempted_for=waiting)

    with pytest.raises(Conflict, match="make room"):
        extend(world, lease, HOUR)


def test_a_lease_that_is_taken_back_for_idling_is_not_extended(world: World) -> None:
    lease = world.active()
    Lease.objects.filter(pk=lease.pk).update(preempt_at=world.now + HOUR / 2)

    with pytest.raises(Conflict, match="idles"):
        extend(world, lease, HOUR)


def test_all_of_a_leases_time_stays_within_its_flavors_longest(world: World) -> None:
    lease = world.active()
    longest = timedelta(seconds=lease.flavor.max_duration_s)

    with pytest.raises(Invalid):
        extend(world, lease, longest - HOUR + timedelta(seconds=1))
    extend(world, lease, longest - HOUR)

    assert Lease.objects.get(pk=lease.pk).not_after == lease.not_after + longest - HOUR


def test_a_maintenance_window_that_is_over_stays_as_it_was(world: World) -> None:
    operator = world.user("operator")
    window = make_window(
        nodes=[world.nodes["gpu-03"]], starts_at=world.now, ends_at=world.now + HOUR, reason="fans",
        actor=operator, now=world.now,
    )  # fmt: skip
    later = world.now + 2 * HOUR

    with pytest.raises(Conflict, match="over"):
        change_window(window=window, starts_at=later, ends_at=later + HOUR, actor=operator, now=later)
    with pytest.raises(Conflict, match="over"):
        cancel_window(window=window, actor=operator, now=later)


def test_only_what_was_ended_is_cleaned(world: World) -> None:
    lease = world.active()

    with transaction.atomic():
        lifecycle.clean_leases(transitions.lock_leases([lease.pk]), at=world.now)

    lease.refresh_from_db()
    assert (lease.state, lease.placements.get().is_live) == ("active", True)
