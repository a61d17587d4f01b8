from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.leases.models import Lease
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease(world: World) -> Lease:
    """A lease of bob's that has run a minute, in a team that needs approval above two GPU hours."""
    team = world.team("perception")
    team.approval_above_gpu_seconds = 2 * 3600
    team.save()
    return world.active("bob", "h100", duration_s=3600, at=timezone.now() - timedelta(minutes=1))


def ask(signed_in: SignedIn, lease: Lease) -> str:
    return signed_in("bob").post(f"/leases/{lease.uid}/extend/", {"extra": "4 h"}, follow=True).text


def test_more_than_the_team_may_have_waits_and_says_so(lease: Lease, signed_in: SignedIn) -> None:
    before = lease.not_after

    said = ask(signed_in, lease)

    assert "So much time needs an approval" in said
    assert "An extension waits for approval" in said
    assert "Withdraw it" in said
    lease.refresh_from_db()
    assert lease.not_after == before


def test_an_approver_decides_on_the_approvals_page(world: World, lease: Lease, signed_in: SignedIn) -> None:
    ask(signed_in, lease)
    alice, path = signed_in("alice"), f"/leases/{lease.uid}/extension/decide/"

    assert lease.uid in alice.get("/approvals/").text
    assert "Say why" in alice.post(path, {"decision": "reject", "note": ""}, follow=True).text
    said = alice.post(path, {"decision": "approve", "note": ""}, follow=True).text

    assert "Approved. The lease runs longer now." in said
    assert "Nothing waits for you" in said
    before = lease.not_after
    lease.refresh_from_db()
    assert lease.not_after == before + timedelta(hours=4)
    assert "approved more time" in signed_in("bob").get("/notifications/").text


def test_a_rejection_reaches_whoever_asked(lease: Lease, signed_in: SignedIn) -> None:
    ask(signed_in, lease)

    path = f"/leases/{lease.uid}/extension/decide/"
    signed_in("alice").post(path, {"decision": "reject", "note": "Use a slice."})

    assert "Use a slice." in signed_in("bob").get("/notifications/").text


def test_it_can_be_withdrawn(lease: Lease, signed_in: SignedIn) -> None:
    ask(signed_in, lease)

    said = signed_in("bob").post(f"/leases/{lease.uid}/extension/withdraw/", follow=True).text

    assert "The extension is withdrawn" in said
    assert "An extension waits" not in said


def test_charlie_and_the_holder_cannot_decide(lease: Lease, signed_in: SignedIn) -> None:
    ask(signed_in, lease)
    path, yes = f"/leases/{lease.uid}/extension/decide/", {"decision": "approve"}

    assert signed_in("charlie").post(path, yes).status_code == 404
    assert signed_in("charlie").post(f"/leases/{lease.uid}/extension/withdraw/").status_code == 404
    assert "role does not allow" in signed_in("bob").post(path, yes, follow=True).text
    assert lease.extensions.get().state == "awaiting_approval"
