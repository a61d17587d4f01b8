"""Calendar, reservations and maintenance on the command line."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from portal.fleet.models import MaintenanceWindow
from portal.leases.models import LeaseRequest, Reservation
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_the_calendar_lists_what_is_held_without_strangers_names(berth: Any, world: World) -> None:
    world.active("bob", duration_s=7200)

    own = berth("calendar")
    strange = berth("calendar", who="charlie")
    mine = berth("calendar", "--mine", "--json", who="charlie")

    assert "gpu-01" in own.stdout
    assert "perception" in own.stdout
    assert "busy" in strange.stdout
    assert "perception" not in strange.stdout.lower()
    assert json.loads(mine.stdout) == []


def test_ones_bookings_as_a_calendar_file(berth: Any, world: World) -> None:
    world.submit("bob", "h100", starts_at=world.now + HOUR)
    world.turn()

    found = berth("calendar", "--ical")

    assert found.stdout.startswith("BEGIN:VCALENDAR")
    assert found.stdout.count("BEGIN:VEVENT") == 1


def test_a_reservation_is_made_listed_shown_and_cancelled(berth: Any, world: World) -> None:
    start = f"{world.now + timedelta(days=1):%Y-%m-%dT%H:%M}"

    made = berth(
        "reserve", "h100", "--start", start, "--hours", "2", "--repeat", "daily", "--zone", "Asia/Shanghai"
    )
    uid = made.stdout.strip()
    listed = berth("reservation", "list")
    shown = berth("reservation", "show", uid)
    cancelled = berth("reservation", "cancel", uid)

    assert made.exit_code == 0, made.stderr
    series = Reservation.objects.get()
    assert (series.uid, series.zone) == (uid, "Asia/Shanghai")
    assert uid in listed.stdout
    assert "queued" in shown.stdout
    assert cancelled.exit_code == 0
    assert set(LeaseRequest.objects.values_list("state", flat=True)) == {"withdrawn"}


@pytest.mark.parametrize("more", [["--zone", "Mars/Olympus"], ["--start", "soon"], ["--until", "later"]])
def test_times_that_cannot_be_read_are_wrong_usage(berth: Any, world: World, more: list[str]) -> None:
    found = berth("reserve", "h100", "--start", "2030-01-01T10:00", "--hours", "1", *more)

    assert found.exit_code == 2
    assert not Reservation.objects.exists()


def test_maintenance_is_looked_at_planned_changed_and_taken_back(berth: Any, world: World) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    times = ["--from", (world.now + HOUR).isoformat(), "--to", (world.now + 2 * HOUR).isoformat()]

    preview = berth("maintenance", "add", "gpu-01", *times, "--reason", "fans", "--preview", who="operator")
    assert lease.uid in preview.stdout
    assert not MaintenanceWindow.objects.exists()
    uid = berth("maintenance", "add", "gpu-01", *times, "--reason", "fans", who="operator").stdout.strip()
    later = ["--from", (world.now + 2 * HOUR).isoformat(), "--to", (world.now + 3 * HOUR).isoformat()]
    changed = berth("maintenance", "change", uid, *later, who="operator")
    listed = berth("maintenance", "list")
    taken = berth("maintenance", "cancel", uid, who="operator")

    assert changed.exit_code == taken.exit_code == 0
    assert uid in listed.stdout
    lease.refresh_from_db()
    assert lease.not_after == world.now + 2 * HOUR


def test_bob_plans_no_maintenance(berth: Any, world: World) -> None:
    times = ["--from", "2030-01-01T10:00", "--to", "2030-01-01T12:00"]

    assert berth("maintenance", "add", "gpu-01", *times, "--reason", "fans").exit_code == 1
    assert not MaintenanceWindow.objects.exists()


def test_an_operator_announces_withdraws_and_bob_dismisses(berth: Any, world: World) -> None:
    uid = berth(
        "announce", "add", "Down at noon", "--zh", "中午停机", "--until", "2999-01-01T00:00Z", who="operator"
    ).stdout.strip()
    bobs = berth("announce", "list")
    refused = berth("announce", "withdraw", uid)
    dismissed = berth("announce", "dismiss", uid)
    after, operators = berth("announce", "list"), berth("announce", "list", who="operator")
    withdrawn = berth("announce", "withdraw", uid, who="operator")

    assert uid in bobs.stdout
    assert (refused.exit_code, dismissed.exit_code, withdrawn.exit_code) == (1, 0, 0)
    assert "Nothing is announced" in after.stderr
    assert "Down at noon" in operators.stdout
    assert "Nothing is announced" in berth("announce", "list", who="operator").stderr
