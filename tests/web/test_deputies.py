"""Deputies on pages, in the API and on the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.leases.extending import extend_lease
from portal.leases.models import LeaseExtension, LeaseRequest, Reservation
from portal.notifications.delegations import name_deputy
from portal.teams.models import Delegation
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.portal.builders import World
from tests.portal.test_series_approval import reserve
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
HOUR = 3600


def away(world: World, name: str = "approver", deputy: str = "charlie") -> Delegation:
    now = timezone.now()
    return name_deputy(
        rights=world.rights(name), deputy=deputy, starts_at=None, ends_at=now + timedelta(days=7),
        reason="holiday", now=now,
    )  # fmt: skip


@pytest.fixture
def large(world: World) -> LeaseRequest:
    """A request of bob's that waits for an approver."""
    team = world.team("perception")
    team.approval_above_gpu_seconds = HOUR
    team.save()
    return world.submit("bob", "h100", duration_s=4 * HOUR, count=4)


def test_an_approver_names_a_deputy_and_the_inbox_says_for_whom(
    world: World, large: LeaseRequest, signed_in: SignedIn
) -> None:
    approver, charlie = signed_in("approver"), signed_in("charlie")
    assert charlie.get("/approvals/").status_code == 403
    until = (timezone.now() + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")

    named = approver.post(
        "/approvals/deputies/",
        {"deputy": "charlie", "starts_at": "", "ends_at": until, "reason": "holiday"},
        follow=True,
    )
    inbox = charlie.get("/approvals/").text
    decided = charlie.post(f"/requests/{large.uid}/decide/", {"decision": "approve", "note": ""}, follow=True)

    assert "Charlie for Approver" in named.text
    assert "You decide for Approver" in inbox
    assert 'href="/approvals/"' in charlie.get("/").text
    assert "Approved. It is in the queue now." in decided.text
    assert "by Charlie for Approver" in charlie.get(f"/requests/{large.uid}/").text
    assert "Charlie for Approver approved your request" in signed_in("bob").get("/notifications/").text
    assert "decides on requests for Approver until" in charlie.get("/notifications/").text


def test_charlie_names_nobody_and_ends_nothing(world: World, signed_in: SignedIn) -> None:
    made, charlie = away(world, "approver", "bob"), signed_in("charlie")

    page = charlie.get("/approvals/deputies/")
    posted = charlie.post(
        "/approvals/deputies/", {"deputy": "bob", "ends_at": "2030-01-01T10:00", "reason": "x"}
    )
    ended = charlie.post(f"/approvals/deputies/{made.pk}/end/")

    assert "Bob" not in page.text.partition("<main")[2]
    assert "Name a deputy" not in page.text
    assert (posted.status_code, ended.status_code) == (403, 404)
    assert Delegation.objects.get().ended_at is None


def test_the_deputy_ends_it(world: World, signed_in: SignedIn) -> None:
    made, charlie = away(world), signed_in("charlie")

    said = charlie.post(f"/approvals/deputies/{made.pk}/end/", follow=True).text

    assert "The delegation is ended." in said
    assert "ended by Charlie" in said
    assert charlie.get("/approvals/").status_code == 403


def test_a_refused_deputy_keeps_what_was_typed(signed_in: SignedIn, world: World) -> None:
    page = signed_in("approver").post(
        "/approvals/deputies/", {"deputy": "nobody", "ends_at": "2030-01-01T10:00", "reason": "holiday"}
    )

    assert page.status_code == 422
    assert "Nobody with this user name has a role here." in page.text
    assert "at most 90 days later" in page.text
    assert 'value="nobody"' in page.text


def test_an_extension_and_a_series_are_decided_by_a_deputy(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob", at=timezone.now())
    team = world.team("perception")
    team.approval_above_gpu_seconds = 60
    team.save()
    lease.refresh_from_db()
    extend_lease(lease=lease, actor=world.user("bob"), extra_s=HOUR, now=timezone.now())
    world.now = timezone.now()
    series = reserve(world)
    away(world)
    charlie = signed_in("charlie")

    assert charlie.get("/approvals/").text.count("You decide for Approver") == 2
    charlie.post(f"/leases/{lease.uid}/extension/decide/", {"decision": "approve", "note": ""})
    charlie.post(f"/reservations/{series.uid}/decide/", {"decision": "reject", "note": "no"})

    for row in (LeaseExtension.objects.get(), Reservation.objects.get(pk=series.pk)):
        assert (row.decided_by, row.decided_for) == (world.user("charlie"), world.user("approver"))


def test_deputies_on_the_command_line(
    world: World,
    large: LeaseRequest,
    berth: Berth,  # noqa: F811
) -> None:
    until = (timezone.now() + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M")

    named = berth("deputy", "name", "charlie", "--until", until, "--reason", "holiday", who="approver")
    listed = berth("deputy", "list", who="charlie")
    approved = berth("approve", large.uid, who="charlie")
    shown = berth("show", large.uid, who="charlie")
    ended = berth("deputy", "end", str(Delegation.objects.get().pk), who="charlie")

    assert "charlie decides in your place until" in named.output
    assert "holiday" in listed.output
    assert approved.exit_code == 0
    assert "charlie for approver" in shown.output
    assert ended.exit_code == 0
    assert berth("deputy", "end", "999999999", who="charlie").exit_code == 1
