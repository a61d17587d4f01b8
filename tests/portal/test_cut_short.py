"""A request that may be cut short starts before what comes behind it, ends in time, and its author is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.fleet.models import MaintenanceWindow
from portal.leases import lifecycle
from portal.leases.models import Lease, LeaseRequest
from portal.web.notifications.rows import notification_rows
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def shut(world: World) -> World:
    """Maintenance of gpu-01 begins in two hours."""
    begins = world.now + timedelta(hours=2)
    window = MaintenanceWindow.objects.create(
        starts_at=begins, ends_at=begins + timedelta(hours=4), reason="new cables", created_at=world.now
    )
    window.nodes.add(world.nodes["gpu-01"])
    return world


def test_it_starts_at_once_and_ends_when_maintenance_begins(shut: World) -> None:
    begins = shut.now + timedelta(hours=2)
    shut.submit("bob", "h100", duration_s=6 * 3600, least_duration_s=3600)

    (lease,) = shut.turn()
    shut.ready(lease, at=shut.now + timedelta(seconds=40))

    lease.refresh_from_db()
    assert (lease.cut_by, lease.not_after) == ("maintenance", begins)
    (news,) = notification_rows(shut.user("bob").notifications.all())
    assert "because maintenance begins then" in news.text


def test_what_was_cut_off_is_not_queued_again(shut: World) -> None:
    request = shut.submit("bob", "h100", duration_s=6 * 3600, least_duration_s=3600)
    (lease,) = shut.turn()
    shut.ready(lease)

    up = shut.now + timedelta(hours=2, seconds=1)
    lifecycle.expire_due(now=up)
    shut.gone(lease, at=up)

    assert LeaseRequest.objects.get(pk=request.pk).state == "fulfilled"
    assert Lease.objects.get(pk=lease.pk).end_reason == "expired"


@pytest.mark.parametrize("least_s", [0, 3 * 3600])
def test_it_waits_where_it_may_not_be_cut_that_short(shut: World, least_s: int) -> None:
    request = shut.submit("bob", "h100", duration_s=6 * 3600, least_duration_s=least_s)

    assert shut.turn() == []

    request.refresh_from_db()
    assert request.reasons[0]["code"] == "maintenance_ahead"
