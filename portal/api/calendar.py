"""The calendar over HTTP: what is held and planned, and one's own part as a file for calendar programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Instant
from portal.api.representations import Row
from portal.api.responses_calendar import EntryAnswer
from portal.api.wire import instant
from portal.common.errors import Invalid
from portal.leases.calendar import CalendarEntry, CalendarFilter, check_wanted, devices_of, entries
from portal.leases.ical import as_ical, own_leases

TAG = "calendar"
USUAL = timedelta(days=7)
NAMES = ("node", "model", "team")
LONGEST_NAME = 80


class CalendarEndpoint(Endpoint):
    """What is held and planned."""

    parameters = frozenset({"from", "to", *NAMES})

    @call(
        "Read the calendar", answer=EntryAnswer, is_list=True, refusals=(422,), tag=TAG,
        parameters=(
            query("from", "Begin; now when left out.", OpenApiTypes.DATETIME),
            query("to", "End; a week after the begin when left out, at most 92 days.", OpenApiTypes.DATETIME),
            query("node", "Name of the node."),
            query("model", "Slug of the device model."),
            query("team", "Slug of the team."),
        ),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Read leases, bookings and maintenance by time; what strangers hold is there without names."""
        now = timezone.now()
        wanted = _wanted(request, now)
        check_wanted(wanted)
        found = entries(self.rights, wanted, list(devices_of(wanted)), now=now)
        return Response({"next": None, "results": [entry_row(entry) for entry in found]})


class MyCalendar(Endpoint):
    """One's own bookings as a file."""

    @call("Download one's bookings", media_type="text/calendar", tag=TAG)
    def get(self, request: Request) -> HttpResponse:
        """Download one's own bookings and running leases as iCalendar (RFC 5545)."""
        text = as_ical(own_leases(self.person), host=request.get_host(), now=timezone.now())
        return HttpResponse(text, content_type="text/calendar; charset=utf-8")


def entry_row(entry: CalendarEntry) -> Row:
    """Return an entry as it goes out."""
    row: dict[str, Any] = asdict(entry)
    del row["device_id"]
    return row | {"starts_at": instant(entry.starts_at), "ends_at": instant(entry.ends_at)}


def _wanted(request: Request, now: datetime) -> CalendarFilter:
    since = _moment(request, "from") or now
    until = _moment(request, "to") or since + USUAL
    names = {name: request.query_params.get(name, "") for name in NAMES}
    long = {
        name: f"At most {LONGEST_NAME} characters."
        for name, text in names.items()
        if len(text) > LONGEST_NAME
    }
    if long:
        raise Invalid(fields=long)
    return CalendarFilter(since, until, **names)


def _moment(request: Request, name: str) -> datetime | None:
    raw = request.query_params.get(name)
    if raw is None:
        return None
    try:
        return Instant().to_internal_value(raw)
    except ValidationError as error:
        raise Invalid(fields={name: [str(text) for text in error.detail]}) from error
