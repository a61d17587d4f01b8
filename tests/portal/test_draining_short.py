"""A lease that was granted short, because something stands behind it, is emptied away earlier than that."""

from __future__ import annotations

import pytest

from portal.agents.desired import LEASES
from portal.common.sql import fetch
from portal.fleet.models import MaintenanceWindow
from portal.leases import lifecycle
from portal.leases.maintenance import cancel_window, change_window
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import World
from tests.portal.test_draining import HOUR, SECOND, back, drain
from tests.portal.test_maintenance import plan

pytestmark = pytest.mark.django_db


def short(world: World) -> Lease:
    """Return a lease that agreed to end after two hours, where maintenance begins."""
    plan(world, start=2 * HOUR)
    return world.active("bob", "h100", duration_s=6 * 3600, least_duration_s=3600)


def test_what_the_drain_takes_of_the_shorter_time_goes_back_into_the_queue(world: World) -> None:
    lease = short(world)
    assert (lease.not_after, lease.cut_by, lease.wanted_until) == (world.now + 2 * HOUR, "maintenance", None)

    drain(world, by=HOUR)
    lifecycle.expire_due(now=world.now + HOUR)
    world.gone(lease, at=world.now + HOUR + 3 * SECOND)

    lease.refresh_from_db()
    request = LeaseRequest.objects.get(pk=lease.request_id)
    assert (lease.end_reason, lease.ended_at) == ("maintenance", world.now + HOUR)
    assert (request.state, request.remaining_s) == ("queued", 3600)


def test_brought_back_the_node_gives_it_the_end_it_agreed_to(world: World) -> None:
    lease = short(world)
    drain(world, by=HOUR)

    back(world)

    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + 2 * HOUR, None)
    assert lease.cut_by == "maintenance", "the window still stands behind it"


def test_one_that_ends_before_a_booking_keeps_its_time_too(world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    Lease.objects.filter(pk=lease.pk).update(cut_by="booking")

    drain(world, by=HOUR)

    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + HOUR, world.now + 2 * HOUR)


def test_its_agent_is_told_that_it_makes_way(world: World) -> None:
    lease = short(world)
    assert [row[12] for row in fetch(LEASES, [lease.node_id])] == [False]

    drain(world, by=HOUR)

    assert [row[12] for row in fetch(LEASES, [lease.node_id])] == [True]


def test_a_drain_at_the_agreed_end_or_later_takes_nothing_and_gives_nothing_back(world: World) -> None:
    lease = short(world)

    drain(world, by=2 * HOUR)
    lifecycle.expire_due(now=world.now + 2 * HOUR)
    world.gone(lease, at=world.now + 2 * HOUR + SECOND)

    lease.refresh_from_db()
    assert lease.end_reason == "expired"
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"
    assert not world.user("bob").notifications.filter(kind="lease.cut_by_maintenance").exists()


def test_a_window_that_moves_nearer_owes_what_it_takes_and_gives_it_back_when_cancelled(world: World) -> None:
    lease = short(world)
    window = MaintenanceWindow.objects.get()

    change_window(
        window=window,
        starts_at=world.now + HOUR,
        ends_at=world.now + 2 * HOUR,
        actor=world.user("operator"),
        now=world.now,
    )
    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + HOUR, world.now + 2 * HOUR)

    cancel_window(window=window, actor=world.user("operator"), now=world.now)
    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until, lease.cut_by) == (world.now + 2 * HOUR, None, "")
