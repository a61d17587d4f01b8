"""In which time zone months of the books begin and end, over HTTP."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.budgets import MonthField
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.responses import ResponseShape
from portal.billing.periods import MonthZones, month_zones, set_month_zone
from portal.common.clock import db_now
from portal.common.zones import LONGEST_NAME

TAG = "money"


class MonthZoneBody(Body):
    """A time zone, and the month from which on it holds: left out, the first that nobody has used."""

    zone = Text(most=LONGEST_NAME, help_text="Such as Europe/Berlin.")
    since = MonthField(required=False, allow_null=True, default=None)


class PlannedZone(ResponseShape):
    """The zone of later months."""

    zone = s.CharField()
    since = s.CharField()


class MonthZoneAnswer(ResponseShape):
    """The zone of the running month; `planned` is what was set for later ones."""

    zone = s.CharField()
    since = s.CharField(allow_null=True, help_text="The first month in it; null: all before are too.")
    planned = PlannedZone(allow_null=True)
    earliest = s.CharField(help_text="The first month for which another one can be set.")


class MonthZoneEndpoint(Endpoint):
    """The time zone of months."""

    @call("Read the zone of months", answer=MonthZoneAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read in which time zone months begin and end."""
        return Response(_row(month_zones(now=timezone.now())))

    @call("Set the zone of months", body=MonthZoneBody, answer=MonthZoneAnswer, refusals=(422,), tag=TAG)
    def put(self, request: Request) -> Response:
        """Let months begin at midnight in a time zone, from a month on that nobody has used: finance only.

        The first month in it begins where the one before it ends. What was set for later months is taken back.
        """
        self.require_finance()
        wanted = self.take(MonthZoneBody)
        return Response(
            _row(set_month_zone(zone=wanted["zone"], since=wanted["since"], actor=self.person, now=db_now()))
        )


def _row(zones: MonthZones) -> dict[str, object]:
    planned = zones.planned
    return {
        "zone": zones.zone,
        "since": f"{zones.since:%Y-%m}" if zones.since else None,
        "planned": {"zone": planned.name, "since": f"{planned.since:%Y-%m}"} if planned else None,
        "earliest": f"{zones.earliest:%Y-%m}",
    }
