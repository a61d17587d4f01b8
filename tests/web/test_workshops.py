"""The pages of workshops: look before booking, see who came, start one's own slice."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.leases.attendees import AttendeeList
from portal.leases.models import LeaseRequest, Workshop, WorkshopSeat
from portal.leases.workshops import WorkshopSpec, create_workshop
from portal.teams.models import Membership
from portal.web.fields import LOCAL_TIME
from tests.portal.builders import PASSWORD, World
from tests.web.conftest import Publish, SignedIn

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def typed(world: World, **more: object) -> dict[str, object]:
    values = {
        "name": "Intro to CUDA", "team": "vision", "flavor": "h100-1g-10gb", "duration": "2 h",
        "starts_at": (world.now + HOUR).strftime(LOCAL_TIME), "return_after": "15 min", "people": "alice",
    }  # fmt: skip
    return {**values, **more}


def planned(
    world: World, *, starts_at: datetime | None = None, who: str = "alice", seat: str = "bob"
) -> Workshop:
    return create_workshop(
        team=world.team("perception"),
        rights=world.rights(who),
        spec=WorkshopSpec("Intro to CUDA", "h100-1g-10gb", starts_at or world.now + HOUR, 7200),
        people=AttendeeList(ready=(world.user(seat),)),
        now=world.now,
    )


def test_a_list_is_looked_at_before_anything_is_booked(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    publish(world.now)
    alice = signed_in("alice")

    page = alice.post("/workshops/new/", typed(world, people="alice\nbob\nnobody", action="book"))

    text = page.content.decode()
    assert page.status_code == 200
    assert Workshop.objects.count() == 0
    assert "nobody" in text
    assert "One person is not in the team" in text
    assert "for everybody" in text
    assert 'value="book"' not in text


def test_a_time_without_room_for_all_offers_others(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    for _number in range(8):
        world.active("charlie", "h100", duration_s=2 * 3600)
    publish(world.now)
    alice = signed_in("alice")

    page = alice.post("/workshops/new/", typed(world, flavor="h100", action="preview"))

    assert "There is not room for everybody at that time" in page.content.decode()
    (other, *_more) = page.context["preview"].others
    moved = alice.post("/workshops/new/", typed(world, flavor="h100", move_to=other.value))
    assert moved.context["preview"].free == 8
    assert Workshop.objects.count() == 0


def test_booking_lets_outsiders_in_until_it_ends(world: World, signed_in: SignedIn) -> None:
    alice = signed_in("alice")

    refused = alice.post("/workshops/new/", typed(world, people="bob", action="book"))
    booked = alice.post("/workshops/new/", typed(world, people="bob", action="book", gives_roles="on"))

    made = Workshop.objects.get()
    assert (refused.status_code, booked.status_code) == (422, 302)
    assert booked["Location"] == f"/workshops/{made.uid}/"
    assert Membership.objects.get(user=world.user("bob"), team=world.team("vision")).ends_at == made.ends_at


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("duration", "soon"), ("return_after", "3 h"), ("starts_at", "yesterday"), ("flavor", "x"),
        ("name", ""), ("people", ""), ("people", "a\x00b"), ("people", "x" * 30_000),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_marked(world: World, signed_in: SignedIn, field: str, value: str) -> None:
    page = signed_in("alice").post("/workshops/new/", typed(world, action="book", **{field: value}))

    assert page.status_code == 422
    assert field in page.context["form"].errors
    assert Workshop.objects.count() == 0


def test_its_organiser_sees_who_came_and_the_others_their_own_seat(world: World, signed_in: SignedIn) -> None:
    workshop = planned(world, starts_at=world.now + timedelta(minutes=10))
    world.turn()

    organiser = signed_in("alice").get(f"/workshops/{workshop.uid}/").content.decode()
    own = signed_in("bob").get(f"/workshops/{workshop.uid}/").content.decode()

    assert "Not here yet" in organiser
    assert "Add people" in organiser
    assert "Your slice is ready for you" in own
    assert "Not here yet" not in own


def test_one_click_starts_ones_own_slice(world: World, signed_in: SignedIn) -> None:
    workshop = planned(world, starts_at=world.now + timedelta(minutes=10))
    bob = signed_in("bob")
    assert "Start my slice" in bob.get("/").content.decode()

    answer = bob.post(f"/workshops/{workshop.uid}/start/", follow=True)

    assert "You are early" in answer.content.decode()
    assert WorkshopSeat.objects.get().claimed_at is not None
    assert LeaseRequest.objects.get().awaits_person is False


def test_signing_in_starts_it_too(world: World) -> None:
    planned(world, starts_at=world.now + timedelta(minutes=10))

    answer = Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}, follow=True)

    assert "Intro to CUDA" in answer.content.decode()
    assert WorkshopSeat.objects.get().claimed_at is not None


def test_too_early_says_from_when_on(world: World, signed_in: SignedIn) -> None:
    workshop = planned(world)

    answer = signed_in("bob").post(f"/workshops/{workshop.uid}/start/", follow=True)

    assert "It can be started from" in answer.content.decode()
    assert WorkshopSeat.objects.get().claimed_at is None


def test_an_approver_finds_it_in_the_inbox(world: World, signed_in: SignedIn) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 10
    team.save()
    workshop = planned(world)
    approver = signed_in("approver")
    assert "Intro to CUDA" in approver.get("/approvals/").content.decode()

    rejected = approver.post(f"/workshops/{workshop.uid}/decide/", {"decision": "reject"}, follow=True)
    approved = approver.post(f"/workshops/{workshop.uid}/decide/", {"decision": "approve"})

    assert "Say why" in rejected.content.decode()
    assert approved["Location"] == "/approvals/"
    assert LeaseRequest.objects.get().author == world.user("bob")


def test_people_come_and_go_and_the_rest_is_cancelled(world: World, signed_in: SignedIn) -> None:
    workshop, alice = planned(world), signed_in("alice")
    at = f"/workshops/{workshop.uid}/"

    assert alice.post(f"{at}people/", {"people": "nobody"}).status_code == 422
    assert alice.post(f"{at}people/", {"people": "alice"}).status_code == 302
    assert alice.post(f"{at}people/remove/", {"person": "bob"}).status_code == 302
    assert alice.post(f"{at}again/").status_code == 302
    assert [seat.user.username for seat in workshop.seats.all()] == ["alice"]
    assert alice.post(f"{at}cancel/").status_code == 302

    workshop.refresh_from_db()
    assert workshop.cancelled_at is not None
    assert "This workshop is cancelled" in alice.get(at).content.decode()


def test_booking_it_again_begins_with_the_same_a_week_later(world: World, signed_in: SignedIn) -> None:
    workshop = planned(world)

    form = signed_in("alice").get(f"/workshops/new/?again={workshop.uid}").context["form"]

    assert form["people"].value() == "bob"
    assert form.initial["starts_at"] == workshop.starts_at + timedelta(days=7)


def test_charlie_finds_nothing(world: World, signed_in: SignedIn) -> None:
    workshop, charlie = planned(world), signed_in("charlie")
    at = f"/workshops/{workshop.uid}/"

    assert "Intro to CUDA" not in charlie.get("/workshops/").content.decode()
    assert charlie.get(at).status_code == 404
    assert charlie.get(f"/workshops/new/?again={workshop.uid}").status_code == 404
    for action in ("start", "decide", "people", "people/remove", "again", "cancel"):
        assert charlie.post(f"{at}{action}/", {"decision": "approve", "people": "charlie"}).status_code == 404
    workshop.refresh_from_db()
    assert workshop.cancelled_at is None
    assert workshop.seats.count() == 1


def test_a_longer_list_takes_no_more_queries(
    world: World, signed_in: SignedIn, django_assert_max_num_queries: object
) -> None:
    alice = signed_in("alice")
    planned(world)
    with django_assert_max_num_queries(40) as few:  # type: ignore[operator]
        alice.get("/workshops/")
    for number in range(3):
        planned(world, starts_at=timezone.now() + (number + 2) * HOUR)

    with django_assert_max_num_queries(len(few)):  # type: ignore[operator]
        alice.get("/workshops/")
