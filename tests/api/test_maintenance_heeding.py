"""Maintenance over HTTP: what was asked is kept before leases follow, and stands when they do not follow yet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from portal.api.models import IdempotencyKey
from portal.common.errors import Unavailable
from portal.fleet.models import MaintenanceWindow
from portal.leases import maintenance
from portal.leases.maintenance import heed_windows
from portal.leases.models import Lease
from tests.api.conftest import Caller
from tests.portal.builders import World, build_world

HOUR = timedelta(hours=1)
NAMES = ("plan", "change", "cancel")


def made(world: World) -> MaintenanceWindow:
    """Store a window that no lease has heeded yet."""
    window = MaintenanceWindow.objects.create(
        starts_at=world.now + HOUR, ends_at=world.now + 2 * HOUR, reason="fans", created_at=world.now
    )
    window.nodes.add(world.nodes["gpu-01"])
    return window


def call_of(name: str, world: World) -> tuple[str, dict[str, Any], int]:
    """Return path, body and the status of a call that is in order."""
    times = {
        "starts_at": (world.now + HOUR).isoformat(),
        "ends_at": (world.now + 2 * HOUR).isoformat(),
    }
    if name == "plan":
        return "maintenance/", {**times, "nodes": ["gpu-01"], "reason": "fans"}, 201
    uid = made(world).uid
    return f"maintenance/{uid}/{name}/", times if name == "change" else {}, 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", NAMES)
def test_the_key_and_its_answer_are_committed_before_leases_follow(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build_world()
    operator = Caller(world.token("operator", "admin"))
    path, body, status = call_of(name, world)
    seen: list[tuple[bool, list[tuple[int]]]] = []

    def look(*, now: datetime) -> int:
        with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as other:
            rows = other.execute(
                "SELECT status FROM api_idempotencykey WHERE key = 'w-1' FOR UPDATE NOWAIT"
            ).fetchall()
        seen.append((connection.in_atomic_block, rows))
        return 0

    monkeypatch.setattr(maintenance, "heed_windows", look)

    answer = operator.post(path, body, **{"Idempotency-Key": "w-1"})

    assert answer.status_code == status
    assert seen == [(False, [(status,)])]


@pytest.mark.django_db
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("trouble", [Unavailable(), OperationalError("gone"), RuntimeError("a bug")])
def test_leases_that_cannot_follow_yet_cost_the_caller_nothing(
    name: str, trouble: Exception, world: World, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, status = call_of(name, world)

    def fails(*, now: datetime) -> int:
        raise trouble

    def is_gone(topic: str) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(maintenance, "heed_windows", fails)
    monkeypatch.setattr(maintenance, "nudge_on_commit", is_gone)
    answer = calls("operator").post(path, body, **{"Idempotency-Key": "w-2"})

    assert answer.status_code == status
    assert IdempotencyKey.objects.get(key="w-2").status == status
    assert answer.json() == calls("operator").get(f"maintenance/{answer.json()['id']}/").json()


@pytest.mark.django_db
def test_what_a_call_could_not_do_to_leases_the_next_turn_does(
    world: World, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    path, body, _status = call_of("plan", world)

    def fails(*, now: datetime) -> int:
        raise Unavailable

    with monkeypatch.context() as broken:
        broken.setattr(maintenance, "heed_windows", fails)
        calls("operator").post(path, body)
    before = Lease.objects.get(pk=lease.pk).not_after
    heed_windows(now=world.now)

    assert before == world.now + 2 * HOUR
    assert Lease.objects.get(pk=lease.pk).not_after == world.now + HOUR


@pytest.mark.django_db
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "w-3"}])
def test_leases_follow_a_window_within_the_call_with_and_without_a_key(
    headers: dict[str, str], world: World, calls: Callable[..., Caller]
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    path, body, _status = call_of("plan", world)

    uid = calls("operator").post(path, body, **headers).json()["id"]
    shorter = Lease.objects.get(pk=lease.pk).not_after
    calls("operator").post(f"maintenance/{uid}/cancel/", {})

    assert (shorter, Lease.objects.get(pk=lease.pk).not_after) == (world.now + HOUR, world.now + 2 * HOUR)


@pytest.mark.django_db
def test_a_refused_window_makes_no_lease_follow(
    world: World, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[datetime] = []

    def follow(*, now: datetime) -> int:
        followed.append(now)
        return 0

    monkeypatch.setattr(maintenance, "heed_windows", follow)
    path, body, _status = call_of("plan", world)

    refused = calls("operator").post(path, {**body, "nodes": ["no-such-node"]})

    assert (refused.status_code, followed) == (422, [])
