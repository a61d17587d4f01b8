"""Hours of the fleet over HTTP: what was allocated, used, held without use and unavailable. Operators."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.errors import Invalid
from portal.telemetry.utilisation import HOUR, LONGEST, fleet_hours

TAG = "fleet"
MOST_HOURS = LONGEST // HOUR


class FleetHourAnswer(ResponseShape):
    """One hour of the fleet; shares are means over the hour in thousandths of a device."""

    at = s.DateTimeField()
    is_known = s.BooleanField(help_text="False before the fleet was there.")
    capacity_milli = s.IntegerField()
    allocated_milli = s.IntegerField()
    used_milli = s.IntegerField(allow_null=True, help_text="Null: nothing was measured.")
    measured_milli = s.IntegerField(help_text="What of the allocated part was measured.")
    unavailable_milli = s.IntegerField()
    idle_micro = s.IntegerField(allow_null=True, help_text="Price of what was held, measured and not used.")


class Utilisation(Endpoint):
    """How much of the fleet was allocated and used."""

    parameters = frozenset({"hours"})

    @call(
        "Read the utilisation of the fleet", answer=FleetHourAnswer, is_list=True, refusals=(422,), tag=TAG,
        parameters=(query("hours", f"How many hours up to now, 24 when left out, at most {MOST_HOURS}.", int),),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Read by hour what was allocated, used, held without use and unavailable. Operators."""
        self.require_operator()
        raw = request.query_params.get("hours", "24")
        if not (raw.isascii() and raw.isdecimal() and len(raw) <= 6 and 1 <= int(raw) <= MOST_HOURS):
            raise Invalid(fields={"hours": f"A whole number from 1 to {MOST_HOURS}."})
        now = timezone.now()
        since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=int(raw) - 1)
        rows = [
            {
                "at": instant(hour.at),
                "is_known": hour.is_known,
                "capacity_milli": hour.capacity,
                "allocated_milli": hour.allocated,
                "used_milli": hour.used,
                "measured_milli": hour.measured,
                "unavailable_milli": hour.unavailable,
                "idle_micro": hour.idle_micro,
            }
            for hour in fleet_hours(since=since, hours=int(raw), now=now)
        ]
        return Response({"next": None, "results": rows})
