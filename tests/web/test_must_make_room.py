"""Who must make room sees it where they look: on the lease, in the list, on the bell, in the API."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from portal.common.errors import Conflict
from portal.leases import preempting
from portal.leases.extending import extend_lease
from portal.leases.models import Lease
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease(world: World) -> Lease:
    """A lease of bob's that was told to go for a request of charlie's."""
    held = world.active("bob", "h100-1g-10gb")
    waiting = world.submit("charlie", "h100-1g-10gb")
    told = preempting.ToldLease(held.pk, waiting.pk, "reclaim")
    (found,) = preempting.tell([told], grace_s=120, now=world.now)
    return found


def page(client: Client, world: World, name: str, url: str) -> str:
    client.force_login(world.user(name))
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def test_the_lease_says_when_and_why_and_offers_no_extension(
    client: Client, world: World, lease: Lease
) -> None:
    shown = page(client, world, "bob", reverse("web:lease", args=[lease.uid]))

    assert "This lease must make room" in shown
    assert "Another team takes back what it is guaranteed." in shown
    assert 'data-open-dialog="extend"' not in shown


def test_lists_mark_it(client: Client, world: World, lease: Lease) -> None:
    assert "Must make room" in page(client, world, "bob", reverse("web:leases"))
    assert "Must make room" in page(client, world, "bob", reverse("web:home"))


def test_the_bell_says_it_and_says_when_it_may_stay(client: Client, world: World, lease: Lease) -> None:
    url = reverse("web:notifications")
    assert "another team takes back what it is guaranteed" in page(client, world, "bob", url)

    preempting.spare([lease.pk], now=world.now)

    assert "may stay after all" in page(client, world, "bob", url)


def test_a_stranger_sees_nothing_of_it(client: Client, world: World, lease: Lease) -> None:
    client.force_login(world.user("charlie"))

    assert client.get(reverse("web:lease", args=[lease.uid])).status_code == 404


def test_the_api_says_when_and_why(client: Client, world: World, lease: Lease) -> None:
    headers = {"Authorization": f"Bearer {world.token('bob')}"}

    row = client.get(f"/api/v1/leases/{lease.uid}/", headers=headers).json()

    assert row["preempt_why"] == "reclaim"
    assert row["preempt_at"].startswith((world.now + timedelta(seconds=120)).isoformat()[:19])
    assert row["is_preemptible"] is False
    assert row["seconds_left"] <= 120


def test_it_cannot_be_extended(world: World, lease: Lease) -> None:
    with pytest.raises(Conflict):
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=600, now=world.now)
