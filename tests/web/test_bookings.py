"""A booking, and what comes behind a lease, on the lease's page and among the news."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.leases.models import Lease, LeaseRequest, Placement
from portal.notifications.services import notify
from portal.web.leases.page import extensions
from portal.web.notifications.rows import notification_rows
from portal.web.requests.quote import free_times
from tests.portal.builders import World
from tests.portal.test_bookings import book
from tests.portal.upkeep import plan

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def booking(world: World) -> Lease:
    lease = book(world, world.submit("bob", "h100", starts_at=world.now + HOUR))
    assert lease is not None
    return lease


def test_a_booking_shows_when_it_begins_and_is_given_up_on_its_page(world: World, signed_in: Any) -> None:
    lease, browser = booking(world), signed_in("bob")

    page = browser.get(f"/leases/{lease.uid}/").content.decode()
    assert "Begins in" in page
    assert "Cancel the booking" in page
    answer = browser.post(f"/leases/{lease.uid}/release/", follow=True)

    assert "Nothing is billed" in answer.content.decode()
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "withdrawn"


def test_the_first_page_says_when_a_booking_begins_and_does_not_count_it_as_held(
    world: World, signed_in: Any
) -> None:
    booking(world)

    page = signed_in("bob").get("/").content.decode()

    assert "begins, as booked" in page
    assert "You hold" not in page


def test_charlie_cannot_see_or_give_up_a_booking(world: World, signed_in: Any) -> None:
    lease, charlie = booking(world), signed_in("charlie")

    assert charlie.get(f"/leases/{lease.uid}/").status_code == 404
    assert charlie.post(f"/leases/{lease.uid}/release/").status_code == 404
    lease.refresh_from_db()
    assert lease.state == "booked"


def test_the_dialog_offers_what_fits_before_a_booking_and_the_time_up_to_it(
    world: World, signed_in: Any
) -> None:
    lease = world.active("bob", "h100", duration_s=3600)
    other = world.submit("charlie", "h100", starts_at=world.now + 2 * HOUR - timedelta(minutes=10))
    book(world, other, device=Placement.objects.get(lease=lease).device)

    page = signed_in("bob").get(f"/leases/{lease.uid}/").content.decode()

    assert "Its place is booked from" in page
    assert 'value="30 min"' in page
    assert 'value="50 min"' in page
    assert 'value="4 h"' not in page


def test_a_lease_that_maintenance_shortens_says_so_and_what_becomes_of_the_rest(
    world: World, signed_in: Any
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    plan(world, reason="new fans")

    page = signed_in("bob").get(f"/leases/{lease.uid}/").content.decode()

    assert "It ends before maintenance" in page
    assert "new fans" in page
    lease.refresh_from_db()
    assert extensions(lease, now=world.now, latest=None) == []


@pytest.mark.parametrize(
    ("kind", "facts", "words"),
    [
        (
            "booking.taken",
            {"starts_at": "2026-03-10T09:00:00+00:00", "nearest": ["2026-03-10T12:00:00+00:00"]},
            "Free near it",
        ),
        ("booking.taken", {"starts_at": "2026-03-10T09:00:00+00:00", "nearest": []}, "Nothing near it"),
        (
            "booking.replanned",
            {"starts_at": "2026-03-10T09:00:00+00:00", "node": "gpu-01", "why": "held"},
            "not clean",
        ),
        ("booking.replanned", {"why": "offline"}, "not ready"),
        ("booking.soon", {"starts_at": "2026-03-10T09:00:00+00:00", "node": "gpu-01"}, "begins"),
        ("lease.cut_by_maintenance", {"not_after": "2026-03-10T09:00:00+00:00", "reason": "fans"}, "fans"),
        ("lease.longer_again", {"not_after": "2026-03-10T09:00:00+00:00"}, "runs until"),
        ("reservation.missed", {"starts_at": "2026-03-10T09:00:00+00:00", "why": "too many"}, "too many"),
        ("reservation.ended", {}, "reservation of yours ended"),
    ],
)
def test_every_piece_of_news_is_a_sentence(
    world: World, kind: str, facts: dict[str, Any], words: str
) -> None:
    notify([world.user("bob")], kind, target="rsv-1", at=world.now, **facts)

    (row,) = notification_rows(world.user("bob").notifications.all())

    assert words in row.text
    assert "%(" not in row.text


def test_news_told_anew_is_unread_again_with_the_present_figures(world: World) -> None:
    bob = world.user("bob")
    for end in ("2026-03-10T09:00:00+00:00", "2026-03-10T11:00:00+00:00"):
        notify([bob], "lease.longer_again", target="lse-1", at=world.now, is_news=True, not_after=end)
        bob.notifications.update(read_at=world.now)
    notify([bob], "lease.longer_again", target="lse-1", at=world.now, is_news=True, not_after=end)

    told = bob.notifications.get()
    assert (told.read_at, told.facts["not_after"]) == (None, end)


def test_what_is_nearest_to_the_impossible_is_no_time() -> None:
    reasons = [
        {"code": "no_such_device", "nearest": {"models": ["a100"]}},
        {"code": "taken", "starts_at": "2026-11-01T09:00:00+00:00", "nearest": ["2026-11-01T11:00:00+00:00"]},
    ]

    assert [time.at.hour for time in free_times(reasons)] == [11]
