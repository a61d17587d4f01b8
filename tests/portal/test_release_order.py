"""Giving up a booking locks its request before its leases, as everybody else does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.leases import lifecycle
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import World
from tests.portal.test_bookings import booked

pytestmark = pytest.mark.django_db


def order(asked: Any) -> list[str]:
    """Return which tables were locked, in order."""
    locks = [one["sql"] for one in asked.captured_queries if "FOR UPDATE" in one["sql"]]
    return ["request" if "FROM leases_leaserequest" in sql else "lease" for sql in locks]


def test_a_booking_is_given_up_from_its_request_on(world: World) -> None:
    lease = booked(world)

    with CaptureQueriesContext(connection) as asked:
        lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now)

    assert order(asked)[:2] == ["request", "lease"]
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "withdrawn"


def test_over_http_a_booking_is_given_up_and_its_state_is_told(world: World) -> None:
    lease = booked(world, after=timedelta(hours=2))
    client = Client(headers={"Authorization": f"Bearer {world.token('bob', 'lease:write')}"})

    answers = [client.post(f"/api/v1/leases/{lease.uid}/release/", {}, "application/json") for _ in range(2)]

    assert [(a.status_code, a.json()["state"]) for a in answers] == [(200, "ended")] * 2
    assert Lease.objects.get(pk=lease.pk).end_reason == "released"
