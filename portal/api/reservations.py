"""Reservations over HTTP: bookings that come again."""

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
from portal.api.fields import Body, Empty, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.requests import MOST_SECONDS, team_to_ask_for
from portal.api.responses_calendar import ReservationAnswer, ReservationDetail
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.leases import reservations
from portal.leases.models import Reservation
from portal.leases.reservations import SeriesSpec
from portal.leases.selectors import visible_series
from portal.leases.states import Repeat
from portal.teams.selectors import Rights

TAG = "calendar"


class ReservationBody(Body):
    """What comes again. ``team`` may be left out by somebody who asks for one team only."""

    flavor = Text(most=50)
    duration_s = Whole(least=1, most=MOST_SECONDS)
    starts_at = Instant(help_text="The first time.")
    repeat = serializers.ChoiceField(Repeat.choices, default=Repeat.WEEKLY)
    until = Instant(required=False, allow_null=True, help_text="No time after this; null: no end.")
    zone = Text(most=60, default="UTC", help_text="Time zone in which the hour stays the same.")
    count = Whole(least=1, most=1000, default=1)
    team = Text(most=50, required=False)
    name = Text(most=80, default="", allow_blank=True)
    purpose = Text(most=300, default="", allow_blank=True)


class Reservations(Endpoint):
    """The reservations of one's teams."""

    write_scope = Scope.LEASE_WRITE
    parameters = PARAMETERS

    @call("List reservations", answer=ReservationAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the recurring reservations of one's teams, newest first."""
        pages = Pages()
        found = pages.page(visible_series(self.rights), request)
        return Response(pages.answer([series_row(series) for series in found]))

    @call(
        "Reserve again and again", body=ReservationBody, answer=ReservationDetail, status=201,
        refusals=(400, 404, 409, 415, 422, 429), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Book the same every day or week. The times of the next four weeks are asked for at once.

        Where they are together more than the team may have without approval, it awaits approval first.
        """
        values, now = self.take(ReservationBody), db_now()
        made = reservations.create_reservation(
            team=team_to_ask_for(self.rights, values.pop("team", None)),
            actor=self.person,
            rights=self.rights,
            spec=SeriesSpec(**values),
            now=now,
        )
        at = f"/api/v1/reservations/{made.uid}/"
        return Response(detail(self.rights, made, now=now), status=201, headers={"Location": at})


class OneReservation(Endpoint):
    """One reservation."""

    @call("Read a reservation", answer=ReservationDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read a reservation with its times from now on and what became of them."""
        found = reservations.series_named(self.rights, uid)
        return Response(detail(self.rights, found, now=timezone.now()))


class ReservationNoteBody(Body):
    """Why a reservation is approved or rejected."""

    note = Text(most=300, default="", allow_blank=True)


class ApproveReservation(Endpoint):
    """Let a reservation be booked."""

    @call(
        "Approve a reservation", body=ReservationNoteBody, answer=ReservationDetail,
        refusals=(404, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let all times of a reservation be booked as they come; nobody decides on their own."""
        return self.decide(uid, reservations.approve_reservation)

    def decide(self, uid: str, act: Callable[..., Reservation]) -> Response:
        """Decide on a reservation with the note of the body."""
        note, now = self.take(ReservationNoteBody)["note"], db_now()
        found = reservations.series_named(self.rights, uid)
        act(series=found, actor=self.person, rights=self.rights, note=note, now=now)
        return Response(detail(self.rights, reservations.series_named(self.rights, uid), now=now))


class RejectReservation(ApproveReservation):
    """Turn a reservation down."""

    @call(
        "Reject a reservation", body=ReservationNoteBody, answer=ReservationDetail,
        refusals=(404, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Turn a reservation down with a note that its author will read; it ends."""
        return self.decide(uid, reservations.reject_reservation)


class CancelReservation(Endpoint):
    """End a reservation."""

    write_scope = Scope.LEASE_WRITE

    @call("Cancel a reservation", body=Empty, answer=ReservationDetail, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """End a reservation and give up its bookings, free of charge; what runs goes on. Safe to repeat."""
        self.take(Empty)
        now = db_now()
        found = reservations.series_named(self.rights, uid)
        reservations.cancel_reservation(series=found, actor=self.person, rights=self.rights, now=now)
        return Response(detail(self.rights, reservations.series_named(self.rights, uid), now=now))


def series_row(series: Reservation) -> Row:
    """Return a reservation; team, author and flavor must be at hand."""
    return {
        "id": series.uid,
        "team": series.team.slug,
        "author": series.author.username,
        "flavor": series.flavor.slug,
        "count": series.count,
        "duration_s": series.duration_s,
        "name": series.name,
        "purpose": series.purpose,
        "starts_at": instant(series.starts_at),
        "repeat": str(series.repeat),
        "until": instant(series.until),
        "zone": series.zone,
        "made_until": instant(series.made_until),
        "approval": str(series.approval),
        "decision_note": series.decision_note,
        "cancelled_at": instant(series.cancelled_at),
        "created_at": instant(series.created_at),
    }


def detail(rights: Rights, series: Reservation, *, now: datetime) -> Row:
    """Return a reservation with its times."""
    times: list[dict[str, Any]] = [
        {
            "request": request.uid,
            "starts_at": instant(request.starts_at),
            "state": str(request.state),
            "leases": [lease.uid for lease in request.leases.all()],
        }
        for request in reservations.times_of(series, now=now)
    ]
    return {
        **series_row(series),
        "can_manage": reservations.may_manage_series(rights, series),
        "times": times,
    }
