"""Workshops over HTTP: slices for a list of people at one time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Flag, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.requests import MOST_SECONDS, team_to_ask_for
from portal.api.responses_workshops import WorkshopAnswer, WorkshopDetail, WorkshopPreviewAnswer
from portal.api.wire import instant, money
from portal.common.clock import db_now
from portal.leases.attendees import MOST_SEATS, AttendeeList, find_attendees
from portal.leases.models import Workshop
from portal.leases.seats import SeatView, claim_seat, own_seat, seats_of
from portal.leases.selectors import visible_workshops
from portal.leases.workshop_quotes import quote_workshop
from portal.leases.workshops import (
    WorkshopSpec,
    add_attendees,
    approve_workshop,
    ask_again,
    cancel_workshop,
    check_workshop,
    create_workshop,
    may_manage_workshop,
    may_see_people,
    reject_workshop,
    remove_attendee,
    workshop_named,
)
from portal.teams.models import Team

TAG = "calendar"


class AttendeesBody(Body):
    """Who comes."""

    people = serializers.ListField(
        child=Text(most=200),
        min_length=1,
        max_length=MOST_SEATS,
        help_text="Sign-in names, e-mail addresses, or full names of members of the team.",
    )
    gives_roles = Flag(
        default=False,
        help_text="Whoever is not in the team becomes a researcher in it until the workshop ends; for its admins.",
    )


class WorkshopBody(AttendeesBody):
    """What everybody gets and when. ``team`` may be left out by somebody who asks for one team only."""

    name = Text(most=80)
    flavor = Text(most=50)
    starts_at = Instant()
    duration_s = Whole(least=1, most=MOST_SECONDS)
    return_after_s = Whole(
        least=60, most=MOST_SECONDS, default=900, help_text="What nobody has started by then is given back."
    )
    team = Text(most=50, required=False)
    purpose = Text(most=300, default="", allow_blank=True)


class WorkshopEndpoint(Endpoint):
    """What the calls on workshops share."""

    write_scope = Scope.LEASE_WRITE

    def asked(self) -> tuple[Team, WorkshopSpec, AttendeeList, bool]:
        """Return team, specification, people and whether to give roles, from the body of the call."""
        values = self.take(WorkshopBody)
        team = team_to_ask_for(self.rights, values.pop("team", None))
        names, gives_roles = values.pop("people"), values.pop("gives_roles")
        spec = WorkshopSpec(**values)
        people = find_attendees("\n".join(names), team=team, rights=self.rights, until=spec.ends_at)
        return team, spec, people, gives_roles

    def answer(self, uid: str, *, status: int = 200) -> Response:
        """Return a workshop as it is now."""
        found = workshop_named(self.rights, uid)
        headers = {"Location": f"/api/v1/workshops/{uid}/"} if status == 201 else {}
        return Response(self.detail(found, timezone.now()), status=status, headers=headers)

    def detail(self, found: Workshop, now: datetime) -> Row:
        """Return a workshop with as many of its seats as this person may see."""
        sees_people = may_see_people(self.rights, found)
        own = own_seat(self.person, found, now=now)
        return {
            **workshop_row(found),
            "can_manage": may_manage_workshop(self.rights, found),
            "own": seat_row(own) if own else None,
            "seats": [seat_row(view) for view in seats_of(found, now=now)] if sees_people else None,
        }


class Workshops(WorkshopEndpoint):
    """The workshops of one's teams, and those one comes to."""

    parameters = PARAMETERS

    @call("List workshops", answer=WorkshopAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the workshops of one's teams and those one has a seat in, the last to begin first."""
        pages = Pages()
        found = pages.page(visible_workshops(self.rights), request)
        return Response(pages.answer([workshop_row(one) for one in found]))

    @call(
        "Book a workshop", body=WorkshopBody, answer=WorkshopDetail, status=201,
        refusals=(404, 409, 422, 429), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Book a slice for each person of a list at one time, all or nothing.

        Where all of it is more than the team may have without approval, it awaits one approval first.
        """
        team, spec, people, gives_roles = self.asked()
        made = create_workshop(
            team=team, rights=self.rights, spec=spec, people=people, now=db_now(), gives_roles=gives_roles
        )
        return self.answer(made.uid, status=201)


class WorkshopPreviews(WorkshopEndpoint):
    """What a workshop would be."""

    @call(
        "Preview a workshop", body=WorkshopBody, answer=WorkshopPreviewAnswer, refusals=(404, 422, 429), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say who was found, what it costs at most and whether there is room for everybody; books nothing."""
        team, spec, people, _gives_roles = self.asked()
        seats, now = len(people.people), db_now()
        flavor = check_workshop(team, self.rights, spec, seats or 1, now=now)
        quote = quote_workshop(team, flavor, spec, seats, now=now)
        return Response(
            {
                "ready": [user.username for user in people.ready],
                "outside": [user.username for user in people.outside],
                "unknown": list(people.unknown),
                "repeated": list(people.repeated),
                "seats": seats,
                "price": None if quote.price_micro is None else money(quote.price_micro, quote.currency),
                "needs_approval": quote.needs_approval,
                "free": quote.free,
                "others": [instant(at) for at in quote.others],
            }
        )


class OneWorkshop(WorkshopEndpoint):
    """One workshop."""

    @call("Read a workshop", answer=WorkshopDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read a workshop: who came, for those who run or approve it; one's own seat for everybody else."""
        return self.answer(uid)


class WorkshopNoteBody(Body):
    """Why a workshop is approved or rejected."""

    note = Text(most=300, default="", allow_blank=True)


class ApproveWorkshop(WorkshopEndpoint):
    """Let a workshop be booked."""

    write_scope = Scope.ADMIN

    @call(
        "Approve a workshop", body=WorkshopNoteBody, answer=WorkshopDetail, refusals=(404, 409, 422, 429), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let the slices of a workshop be booked; nobody decides on their own."""
        return self.decide(uid, approve_workshop)

    def decide(self, uid: str, act: Callable[..., Workshop]) -> Response:
        """Decide on a workshop with the note of the body."""
        note, found = self.take(WorkshopNoteBody)["note"], workshop_named(self.rights, uid)
        act(workshop=found, actor=self.person, rights=self.rights, note=note, now=db_now())
        return self.answer(uid)


class RejectWorkshop(ApproveWorkshop):
    """Turn a workshop down."""

    @call(
        "Reject a workshop", body=WorkshopNoteBody, answer=WorkshopDetail, refusals=(404, 409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Turn a workshop down with a note that its organiser will read."""
        return self.decide(uid, reject_workshop)


class CancelWorkshop(WorkshopEndpoint):
    """End a workshop."""

    @call("Cancel a workshop", body=Empty, answer=WorkshopDetail, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Give up every slice that has not begun, free of charge; what runs goes on. Safe to repeat."""
        self.take(Empty)
        cancel_workshop(workshop=workshop_named(self.rights, uid), rights=self.rights, now=db_now())
        return self.answer(uid)


class StartSeat(WorkshopEndpoint):
    """One's own slice."""

    @call("Start one's own slice", body=Empty, answer=WorkshopDetail, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Say that one has come: one's own slice starts, at its time for whoever is early. Safe to repeat."""
        self.take(Empty)
        claim_seat(user=self.person, workshop=workshop_named(self.rights, uid), now=db_now())
        return self.answer(uid)


class AskAgain(WorkshopEndpoint):
    """Seats without a slice."""

    @call(
        "Ask again for a workshop", body=Empty, answer=WorkshopDetail, refusals=(404, 409, 422, 429), tag=TAG
    )
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Ask once more for the seats that got no slice."""
        self.take(Empty)
        ask_again(workshop=workshop_named(self.rights, uid), rights=self.rights, now=db_now())
        return self.answer(uid)


class WorkshopPeople(WorkshopEndpoint):
    """The people of a workshop."""

    @call(
        "Add people to a workshop", body=AttendeesBody, answer=WorkshopDetail, refusals=(404, 409, 422, 429), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Give more people a seat before it begins; whoever has one keeps it."""
        values, found = self.take(AttendeesBody), workshop_named(self.rights, uid)
        people = find_attendees(
            "\n".join(values["people"]), team=found.team, rights=self.rights, until=found.ends_at
        )
        add_attendees(
            workshop=found,
            rights=self.rights,
            people=people,
            now=db_now(),
            gives_roles=values["gives_roles"],
        )
        return self.answer(uid)


class WorkshopPerson(WorkshopEndpoint):
    """One seat of a workshop."""

    @call("Take a seat away", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, uid: str, username: str) -> Response:
        """Take the seat of somebody away who has not come; the slice is given back."""
        found = workshop_named(self.rights, uid)
        remove_attendee(workshop=found, rights=self.rights, username=username, now=db_now())
        return Response(status=204)


def workshop_row(found: Workshop) -> Row:
    """Return a workshop; team, organiser and flavor must be at hand."""
    return {
        "id": found.uid,
        "name": found.name,
        "team": found.team.slug,
        "organiser": found.organiser.username,
        "flavor": found.flavor.slug,
        "starts_at": instant(found.starts_at),
        "duration_s": found.duration_s,
        "returns_at": instant(found.returns_at),
        "purpose": found.purpose,
        "approval": str(found.approval),
        "decision_note": found.decision_note,
        "cancelled_at": instant(found.cancelled_at),
        "settled_at": instant(found.settled_at),
        "created_at": instant(found.created_at),
    }


def seat_row(view: SeatView) -> dict[str, Any]:
    """Return a seat and what became of it."""
    seat = view.seat
    return {
        "person": seat.user.username,
        "state": view.state,
        "request": seat.request.uid if seat.request else None,
        "lease": view.lease.uid if view.lease else None,
        "came_at": instant(seat.claimed_at),
        "returned_at": instant(seat.returned_at),
    }
