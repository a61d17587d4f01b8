"""A page that plans, changes or takes back maintenance tells the truth even where leases cannot follow at once."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from portal.common.errors import Unavailable
from portal.fleet.models import MaintenanceWindow, Node
from portal.leases import maintenance
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> Client:
    """An operator's browser, while no lease can follow anything."""

    def fails(*, now: datetime) -> int:
        raise Unavailable

    monkeypatch.setattr(maintenance, "heed_windows", fails)
    client.force_login(world.user("operator"))
    return client


def times(world: World, hours: int) -> dict[str, str]:
    starts_at = world.now + timedelta(hours=hours)
    return {
        "starts_at": starts_at.strftime("%Y-%m-%dT%H:%M"),
        "ends_at": (starts_at + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M"),
    }


def test_a_window_is_planned_changed_and_taken_back(operator: Client, world: World) -> None:
    asked = {**times(world, 2), "nodes": ["gpu-01"], "reason": "fans", "confirmed": "yes"}

    planned = operator.post(reverse("web:maintenance"), asked)
    said = operator.get(planned["Location"]).content.decode()
    window = MaintenanceWindow.objects.get()
    changed = operator.post(reverse("web:window_change", args=[window.uid]), times(world, 4))
    window.refresh_from_db()
    later = window.starts_at
    taken_back = operator.post(reverse("web:window_cancel", args=[window.uid]))
    window.refresh_from_db()

    assert [page.status_code for page in (planned, changed, taken_back)] == [302] * 3
    assert "Everybody affected is being told." in said, "nobody was told yet"
    assert later > world.now + timedelta(hours=3)
    assert window.cancelled_at is not None


def test_a_drain_is_kept(operator: Client, world: World) -> None:
    asked = {"within": "60", "reason": "fans", "confirmed": "yes"}

    page = operator.post(reverse("web:node_drain", args=["gpu-01"]), asked)

    assert page.status_code == 302
    assert Node.objects.get(name="gpu-01").drain_by is not None
