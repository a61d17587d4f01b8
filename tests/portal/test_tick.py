"""The tick: what is due is done although another step fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError

from portal.common.errors import Unavailable
from portal.leases import maintenance
from portal.leases.models import Lease
from scheduler import tasks
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def fails(error: Exception, calls: list[object] | None = None) -> Callable[..., None]:
    def step(*, now: object) -> None:
        if calls is not None:
            calls.append(now)
        raise error

    return step


def unavailable(cause: psycopg.Error) -> Unavailable:
    """Return what a step raises after its last try."""
    database = OperationalError(str(cause))
    database.__cause__ = cause
    error = Unavailable()
    error.__cause__ = database
    return error


@pytest.fixture
def late(world: World, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """A lease an hour past its end, and a tick at that hour."""
    lease = world.active("bob", "h100", duration_s=7200)
    monkeypatch.setattr(tasks, "db_now", lambda: world.now + timedelta(hours=3))
    return lease


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), unavailable(psycopg.errors.LockNotAvailable("lock timeout"))],
    ids=["bug", "lock"],
)
def test_leases_end_although_a_step_before_fails_and_the_failure_is_told(
    late: Lease, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "heed_windows", fails(error))

    with pytest.raises(type(error)):
        tasks.tick()

    late.refresh_from_db()
    assert late.state == "ending"


def test_without_a_database_the_tick_ends_at_once(late: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        maintenance, "heed_windows", fails(unavailable(psycopg.OperationalError("no server")))
    )
    monkeypatch.setattr(tasks, "DUE", (fails(RuntimeError("never"), asked),))

    with pytest.raises(Unavailable):
        tasks.tick()

    assert asked == []
