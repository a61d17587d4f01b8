"""The demo's first minute: it is seeded before any node has connected, and nothing of its story is refused."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from portal.accounts.models import User
from portal.common.clock import db_now
from portal.fleet.models import Node
from portal.leases.models import LeaseRequest, Reservation
from portal.notifications.models import Notification
from scheduler import cycle


@pytest.mark.deep
@pytest.mark.django_db
def test_the_weekly_course_waits_for_the_nodes_and_is_booked_when_they_are_there() -> None:
    call_command("seed_demo", stdout=StringIO())
    course = LeaseRequest.objects.filter(series=Reservation.objects.get(name="Weekly course"))

    cycle.run()
    early = set(course.values_list("state", flat=True))
    Node.objects.update(last_seen_at=db_now())
    cycle.run()

    bob = Notification.objects.filter(user=User.objects.get(username="bob"))
    assert early == {"queued"}
    assert course.count() >= 4
    assert set(course.values_list("state", flat=True)) == {"granted"}
    assert not bob.filter(kind__in=["booking.taken", "reservation.missed"]).exists()
