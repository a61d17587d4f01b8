"""Calendar, reservations and maintenance as pages: what is shown to whom, and what can be done there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from portal.fleet.models import MaintenanceWindow
from portal.leases.calendar import CalendarEntry
from portal.leases.maintenance import plan_window
from portal.leases.models import Lease, LeaseRequest, Reservation
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.web.calendar.rows import COLUMNS, rows, span_of, ticks
from tests.portal.builders import World
from tests.portal.upkeep import plan

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def window(world: World) -> MaintenanceWindow:
    return plan(world, node="gpu-03", reason="new fans")


def series(world: World) -> Reservation:
    return create_reservation(
        team=world.team("perception"),
        actor=world.user("bob"),
        rights=world.rights("bob"),
        spec=SeriesSpec("h100", 3600, world.now + HOUR, name="seminar"),
        now=world.now,
    )


def call_it(name: str, thing: Lease | LeaseRequest) -> None:
    LeaseRequest.objects.filter(pk=getattr(thing, "request_id", thing.pk)).update(name=name)


def local(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%dT%H:%M}"


def test_own_work_has_its_name_and_a_stranger_sees_only_that_something_is_there(
    world: World, signed_in: Any
) -> None:
    call_it("secret plan", world.active("bob", duration_s=7200))

    own = signed_in("bob").get("/calendar/").content.decode()
    strange = signed_in("charlie").get("/calendar/").content.decode()

    assert "secret plan" in own
    assert "is-own is-lease" in own
    assert "secret plan" not in strange
    assert "perception" not in strange.lower()
    assert "is-busy is-lease" in strange


def test_bookings_and_maintenance_stand_on_the_calendar_with_their_reason(
    world: World, signed_in: Any
) -> None:
    call_it("exam", world.submit("bob", "h100", starts_at=world.now + HOUR))
    world.turn()
    window(world)

    page = signed_in("bob").get("/calendar/?view=week").content.decode()

    assert "is-own is-booking" in page
    assert "new fans" in page


def test_the_number_of_queries_does_not_grow_with_what_is_held(
    world: World, signed_in: Any, django_assert_max_num_queries: Any
) -> None:
    browser = signed_in("operator")
    for _n in range(5):
        world.active("bob", duration_s=7200)

    with django_assert_max_num_queries(24):
        assert browser.get("/calendar/").status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "view=nonsense&on=never",
        "on=9999-99-99",
        "on=2999-01-01",
        "node=nothing&page=77",
        "view=day&on=2026-03-29",
    ],
)
def test_what_makes_no_sense_falls_back_to_something_that_does(
    world: World, signed_in: Any, query: str
) -> None:
    assert signed_in("bob").get(f"/calendar/?{query}").status_code == 200


def test_a_day_on_which_clocks_change_has_its_hours_where_they_are() -> None:
    with timezone.override(ZoneInfo("Europe/Berlin")):
        spring = span_of("day", "2026-03-29", now=datetime(2026, 3, 1, tzinfo=UTC))
        found = ticks(spring, now=datetime(2026, 3, 1, tzinfo=UTC))

    assert spring.column(datetime(2026, 3, 28, 23, tzinfo=UTC)) == 0
    assert spring.column(datetime(2026, 3, 29, 22, tzinfo=UTC)) == COLUMNS
    assert len(found) == 24


def test_bars_that_overlap_in_time_stand_on_lanes_of_their_own(world: World) -> None:
    span = span_of("day", "2026-03-10", now=datetime(2026, 3, 10, tzinfo=UTC))
    device = world.nodes["gpu-01"].devices.select_related("node", "model").first()
    assert device is not None
    begin = datetime(2026, 3, 10, 8, tzinfo=UTC)
    entries = [
        CalendarEntry(
            "lease", "gpu-01", begin + n * HOUR, begin + (n + 2) * HOUR, device_id=device.pk, start=n
        )
        for n in range(3)
    ]

    _node, row = rows([device], entries, span)

    assert [len(lane) for lane in row.lanes] == [2, 1]


def test_ones_own_bookings_come_as_a_file_and_nobody_elses(world: World, signed_in: Any) -> None:
    call_it("exam, part 2; größer " + "ä" * 50, world.submit("bob", "h100", starts_at=world.now + HOUR))
    call_it("charlie's own", world.submit("charlie", "h100", starts_at=world.now + HOUR))
    world.turn()

    answer = signed_in("bob").get("/calendar/mine.ics")
    text = answer.content.decode()

    assert answer["Content-Type"].startswith("text/calendar")
    assert text.startswith("BEGIN:VCALENDAR\r\n")
    assert text.endswith("END:VCALENDAR\r\n")
    assert text.count("BEGIN:VEVENT") == 1
    assert "SUMMARY:exam\\, part 2\\; größer" in text.replace("\r\n ", "")
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n"))


def test_maintenance_is_planned_after_a_look_at_whom_it_reaches(world: World, signed_in: Any) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    call_it("long run", lease)
    browser = signed_in("operator")
    body = {
        "nodes": ["gpu-01"],
        "starts_at": local(world.now + HOUR),
        "ends_at": local(world.now + 3 * HOUR),
        "reason": "fans",
    }

    preview = browser.post("/operations/maintenance/", body).content.decode()
    assert "long run" in preview
    assert not MaintenanceWindow.objects.exists()
    answer = browser.post("/operations/maintenance/", {**body, "confirmed": "1"})

    made = MaintenanceWindow.objects.get()
    assert answer["Location"] == f"/operations/maintenance/{made.uid}/"
    assert "long run" in browser.get(answer["Location"]).content.decode()
    lease.refresh_from_db()
    assert lease.not_after == made.starts_at


def test_a_window_is_changed_and_taken_back_on_its_page(world: World, signed_in: Any) -> None:
    made, browser = window(world), signed_in("operator")
    times = {"starts_at": local(world.now + 2 * HOUR), "ends_at": local(world.now + 3 * HOUR)}

    browser.post(f"/operations/maintenance/{made.uid}/change/", times)
    made.refresh_from_db()
    assert local(made.starts_at) == times["starts_at"]
    browser.post(f"/operations/maintenance/{made.uid}/cancel/")

    made.refresh_from_db()
    assert made.cancelled_at is not None


def test_a_window_that_makes_no_sense_is_refused_at_its_field(world: World, signed_in: Any) -> None:
    body = {
        "nodes": ["gpu-01"],
        "starts_at": local(world.now + 2 * HOUR),
        "ends_at": local(world.now + HOUR),
        "reason": "fans",
    }

    answer = signed_in("operator").post("/operations/maintenance/", {**body, "confirmed": "1"})

    assert answer.status_code == 422
    assert "The end has to be after the start." in answer.content.decode()
    assert not MaintenanceWindow.objects.exists()


def test_the_cluster_shows_what_is_held_now_and_that_a_node_is_away(world: World, signed_in: Any) -> None:
    world.submit("bob", "h100", starts_at=world.now + HOUR)
    world.turn()
    now = timezone.now()
    plan_window(
        nodes=[world.nodes["gpu-03"]], starts_at=now, ends_at=now + HOUR, reason="fans",
        actor=world.user("operator"), now=now,
    )  # fmt: skip

    seen = signed_in("bob").get("/api/v1/map/").json()
    nodes = {node["name"]: node for node in seen["nodes"]}

    assert {slot["kind"] for device in nodes["gpu-01"]["devices"] for slot in device["slots"]} == {"free"}
    assert "Maintenance" in signed_in("operator").get("/operations/nodes/").content.decode()
    assert nodes["gpu-03"]["state"] == "draining"


def test_only_operators_reach_maintenance(world: World, signed_in: Any) -> None:
    made = window(world)

    for path in ("/operations/maintenance/", f"/operations/maintenance/{made.uid}/"):
        assert signed_in("bob").get(path).status_code == 403
    assert signed_in("bob").post(f"/operations/maintenance/{made.uid}/cancel/").status_code == 403
    assert signed_in("operator").get("/operations/maintenance/mnt-0000000000000000/").status_code == 404


def test_a_reservation_is_made_shown_and_cancelled(world: World, signed_in: Any) -> None:
    browser = signed_in("bob")
    body = {
        "team": "perception", "flavor": "h100", "count": "1", "duration": "2 h", "repeat": "weekly", "name": "course",
        "starts_at": local(world.now + timedelta(days=1)), "zone": "Europe/Berlin",
    }  # fmt: skip

    answer = browser.post("/reservations/", body)
    made = Reservation.objects.get()
    assert answer["Location"] == f"/reservations/{made.uid}/"
    assert made.starts_at.astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None) == (
        timezone.localtime(world.now + timedelta(days=1)).replace(tzinfo=None, second=0)
    )
    world.turn()
    page = browser.get(answer["Location"]).content.decode()
    assert "Booked" in page
    browser.post(f"/reservations/{made.uid}/cancel/")

    assert set(LeaseRequest.objects.values_list("state", flat=True)) == {"withdrawn"}
    assert not Lease.objects.filter(state="booked").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("zone", "Mars/Olympus"),
        ("duration", "soon"),
        ("starts_at", "yesterday"),
        ("count", "0"),
        ("flavor", "nothing"),
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused_at_its_field(
    world: World, signed_in: Any, field: str, value: str
) -> None:
    body = {
        "team": "perception", "flavor": "h100", "count": "1", "duration": "2 h", "repeat": "weekly", "name": "",
        "starts_at": local(world.now + timedelta(days=1)), "zone": "UTC",
    }  # fmt: skip

    answer = signed_in("bob").post("/reservations/", {**body, field: value})

    assert answer.status_code == 422
    assert "field-error" in answer.content.decode()
    assert not Reservation.objects.exists()


def test_charlie_cannot_tell_a_foreign_reservation_from_a_missing_one(world: World, signed_in: Any) -> None:
    made, charlie = series(world), signed_in("charlie")

    for path in (f"/reservations/{made.uid}/", "/reservations/rsv-0000000000000000/"):
        assert charlie.get(path).status_code == 404
        assert charlie.post(f"{path}cancel/").status_code == 404
    assert "seminar" not in charlie.get("/reservations/").content.decode()
    made.refresh_from_db()
    assert made.cancelled_at is None


def test_pages_say_what_to_do_next_where_there_is_nothing(world: World, signed_in: Any) -> None:
    assert "No reservations yet" in signed_in("bob").get("/reservations/").content.decode()
    assert "No maintenance planned" in signed_in("operator").get("/operations/maintenance/").content.decode()
