from __future__ import annotations

from typing import Any

import pytest

from portal.audit.models import AuditEntry
from portal.common.errors import NotFound
from portal.notifications.contact_points import (
    MOST_CONTACTS,
    address_of,
    confirm_contact_point,
    confirmation_of,
)
from portal.notifications.models import ContactPoint, Delivery
from tests.portal.builders import World
from tests.web.conftest import SignedIn

HOOK = "https://hooks.example.org/services/T0/secret-part-9xYz"


def test_a_webhook_is_added_shows_its_secret_once_and_hides_its_address(
    world: World, signed_in: SignedIn
) -> None:
    bob = signed_in("bob")

    answer = bob.post("/contact-points/", {"kind": "webhook", "address": HOOK, "name": "ours"})
    row = ContactPoint.objects.get()
    first, again = bob.get(answer.headers["location"]).text, bob.get(answer.headers["location"]).text

    assert "whsec_" in first
    assert "whsec_" not in again
    assert "hooks.example.org/…9xYz" in again
    assert "secret-part" not in first + again
    assert HOOK.encode() not in bytes(row.address)
    assert address_of(row) == HOOK
    assert AuditEntry.objects.filter(action="contact_point.added").count() == 1


def test_topics_hours_and_switch_are_kept(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    bob.post("/contact-points/", {"kind": "slack", "address": "https://hooks.slack.com/services/1"})
    row = ContactPoint.objects.get()
    asked = {
        "name": "team", "topics": ["leases", "jobs"], "digest_at": "08:30", "quiet_from": "22:00",
        "quiet_until": "07:00",
    }  # fmt: skip

    assert bob.post(f"/contact-points/{row.pk}/", asked).status_code == 302

    row.refresh_from_db()
    assert (row.name, row.digest_at, row.quiet_from, row.quiet_until, row.is_on) == (
        "team",
        510,
        1320,
        420,
        False,
    )
    assert row.muted == [
        "alerts",
        "bookings",
        "budgets",
        "escalated",
        "fleet",
        "other",
        "requests",
        "team_alerts",
    ]
    assert 'value="08:30"' in bob.get(f"/contact-points/{row.pk}/").text
    refused = bob.post(f"/contact-points/{row.pk}/", {**asked, "quiet_until": ""})
    assert refused.status_code == 422
    assert "Quiet hours need a beginning" in refused.text


@pytest.mark.parametrize(
    ("kind", "address", "sentence"),
    [
        ("webhook", "http://example.org/", "begins with https://"),
        ("webhook", "https://me:pass@example.org/", "begins with https://"),
        ("webhook", "https://[", "begins with https://"),
        ("webhook", "https://example.org/\x7f", "begins with https://"),
        ("webhook", "ftp://example.org/", "begins with https://"),
        ("slack", "https://example.org/", "https://hooks.slack.com/"),
        ("email", "bob@example.org", ""),
        ("pager", "https://example.org/", ""),
    ],
)
def test_an_address_that_is_no_use_is_refused(
    world: World, signed_in: SignedIn, kind: str, address: str, sentence: str
) -> None:
    answer = signed_in("bob").post("/contact-points/", {"kind": kind, "address": address})

    assert answer.status_code == 422
    assert sentence in answer.text
    assert not ContactPoint.objects.exists()


def test_charlie_meets_another_persons_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    signed_in("bob").post("/contact-points/", {"kind": "webhook", "address": HOOK})
    row, charlie = ContactPoint.objects.get(), signed_in("charlie")

    assert charlie.get(f"/contact-points/{row.pk}/").status_code == 404
    for action in ("", "test/", "remove/"):
        assert charlie.post(f"/contact-points/{row.pk}/{action}", {"name": "mine"}).status_code == 404
    with pytest.raises(NotFound):
        confirm_contact_point(user=world.user("charlie"), signed=confirmation_of(row), now=world.now)
    assert ContactPoint.objects.filter(pk=row.pk, name="Webhook").exists()


def test_a_mailbox_waits_for_its_link(world: World, signed_in: SignedIn, settings: Any) -> None:
    settings.HAS_MAIL = True
    bob = signed_in("bob")
    bob.post("/contact-points/", {"kind": "email", "address": "bob@example.org"})
    row = ContactPoint.objects.get()

    assert "Open it within a day" in bob.get(f"/contact-points/{row.pk}/").text
    assert bob.get("/contact-points/confirm/nonsense/").status_code == 404
    assert bob.get(f"/contact-points/confirm/{confirmation_of(row)}/").status_code == 302
    row.refresh_from_db()
    assert row.confirmed_at is not None


def test_tests_and_contact_points_are_not_without_end(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    for nth in range(MOST_CONTACTS + 1):
        answer = bob.post("/contact-points/", {"kind": "webhook", "address": HOOK, "name": f"n{nth}"})
    assert "Remove one first" in answer.text
    row = ContactPoint.objects.earliest("pk")
    for _nth in range(21):
        bob.post(f"/contact-points/{row.pk}/test/")

    assert ContactPoint.objects.count() == MOST_CONTACTS
    assert Delivery.objects.count() == 20
    assert "within an hour" in bob.get(f"/contact-points/{row.pk}/").text
