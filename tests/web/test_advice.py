from __future__ import annotations

import re
from datetime import timedelta

from tests.advice.test_leases import measure, ran
from tests.portal.builders import World
from tests.web.conftest import SignedIn

ASKED = {"team": "perception", "flavor": "h100", "count": "1", "duration": "2 h"}


def test_a_receipt_advises_and_each_person_dismisses_for_themselves(
    world: World, signed_in: SignedIn
) -> None:
    lease = ran(world, name="probe")
    measure(lease)
    bob, alice, charlie = signed_in("bob"), signed_in("alice"), signed_in("charlie")
    page = f"/leases/{lease.uid}/"

    before = bob.get(page).text
    assert re.search(r"H100 slice 10 GB costs \d\d % less", before)
    assert "flavor=h100-1g-10gb" in before
    dismissed = bob.post("/advice/h100/dismiss/", {"next": page})
    assert (dismissed.status_code, dismissed["Location"]) == (302, page)

    after = bob.get(page).text
    assert "No more of this advice" not in after
    assert "Advise me again" in after
    assert "No more of this advice" in alice.get(page).text
    assert charlie.get(page).status_code == 404
    bob.post("/advice/h100/restore/", {"next": "https://elsewhere.example/"})
    assert "No more of this advice" in bob.get(page).text
    assert bob.post("/advice/nothing/dismiss/").status_code == 404
    assert bob.get("/advice/h100/dismiss/").status_code == 405


def test_the_receipt_says_why_there_is_no_advice(world: World, signed_in: SignedIn) -> None:
    lease = ran(world)

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert "Not measured: 0 of 60 minutes are known" in text
    assert "No more of this advice" not in text


def test_the_form_advises_from_earlier_leases_until_it_is_dismissed(
    world: World, signed_in: SignedIn
) -> None:
    measure(ran(world))
    bob = signed_in("bob")

    shown = bob.get("/requests/quote/", ASKED).text
    gone = bob.post("/advice/h100/dismiss/", headers={"HX-Request": "true"})

    assert 'data-value="h100-1g-10gb"' in shown
    assert (gone.status_code, gone.content) == (200, b"")
    assert "data-advice" not in bob.get("/requests/quote/", ASKED).text


def test_extending_a_lease_shows_what_would_do(world: World, signed_in: SignedIn) -> None:
    begun = world.now.replace(second=0) - timedelta(minutes=40)
    lease = world.active("bob", "h100", at=begun, duration_s=7200)
    lease.ended_at = world.now
    measure(lease)

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    dialog = text[text.index('id="extend"') :]
    assert re.search(r"H100 slice 10 GB costs \d\d % less", dialog)
