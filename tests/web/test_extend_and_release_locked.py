"""What a page does to a lease is judged, and dated, when its rows are held: not when the click came in."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from portal.common.clock import db_now
from portal.leases.models import Lease, LeaseEvent
from portal.leases.transitions import lock_leases
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


def bob_in(world: World) -> Client:
    client = Client()
    client.force_login(world.user("bob"))
    return client


def while_held(lease: Lease, act: Callable[[], object], then: Callable[[Lease], None]) -> datetime:
    """Let somebody act while the lease is held, do something to it, and return the instant before it is let go."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            (locked,) = lock_leases([lease.pk])
            waiting = meanwhile(act, pool)
            assert not waiting.done()
            then(locked)
            at = db_now()
        waiting.result(timeout=60)
    lease.refresh_from_db()
    return at


def longer(lease: Lease) -> None:
    Lease.objects.filter(pk=lease.pk).update(not_after=lease.not_after + HOUR)


def test_of_two_clicks_at_once_one_extends() -> None:
    world = build_world()
    lease = world.active("bob", "h100", duration_s=3600, at=timezone.now())
    before, bob = lease.not_after, bob_in(world)
    seen = before.isoformat()

    while_held(
        lease, lambda: bob.post(f"/leases/{lease.uid}/extend/", {"extra": "1 h", "seen": seen}), then=longer
    )

    assert lease.not_after == before + HOUR


def test_a_lease_whose_time_was_up_while_the_click_waited_is_not_extended() -> None:
    world = build_world()
    lease = world.active("bob", "h100", duration_s=3600, at=timezone.now())
    token = world.token("bob", "lease:write")
    ends: list[datetime] = []

    def over(locked: Lease) -> None:
        ends.append(db_now())
        Lease.objects.filter(pk=locked.pk).update(not_after=ends[0])

    for client, path, body in (
        (bob_in(world), f"/leases/{lease.uid}/extend/", {"extra": "1 h"}),
        (Client(headers={"Authorization": f"Bearer {token}"}), f"/api/v1/leases/{lease.uid}/extend/", {"extra_s": 60}),
    ):  # fmt: skip
        is_json = {"content_type": "application/json"} if path.startswith("/api") else {}
        Lease.objects.filter(pk=lease.pk).update(not_after=timezone.now() + HOUR)
        ends.clear()
        while_held(lease, lambda c=client, p=path, b=body, j=is_json: c.post(p, b, **j), then=over)  # type: ignore[misc]
        assert lease.not_after == ends[0], path


def test_a_release_is_dated_when_the_lease_is_held() -> None:
    world = build_world()
    lease = world.active("bob", "h100", duration_s=3600, at=timezone.now())
    bob = bob_in(world)

    let_go = while_held(lease, lambda: bob.post(f"/leases/{lease.uid}/release/"), then=lambda _lease: None)

    assert LeaseEvent.objects.get(lease=lease, now="ending").at >= let_go
