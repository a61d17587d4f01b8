"""When which flavor is free, over HTTP: by the timeline that books."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.errors import Invalid
from portal.leases.availability import LONGEST_STEP_H, MOST_STEPS, availability

TAG = "catalogue"


class FlavorHoursAnswer(ResponseShape):
    """How many units of a flavor can be booked for the whole of each step; null where it is not known."""

    flavor = s.SlugField()
    free = s.ListField(child=s.IntegerField(allow_null=True))


class AvailabilityAnswer(ResponseShape):
    """Steps from the present hour on; the first one counts from now."""

    step_hours = s.IntegerField()
    starts = s.ListField(child=s.DateTimeField())
    flavors = FlavorHoursAnswer(many=True)


class AvailabilityEndpoint(Endpoint):
    """What is free when."""

    parameters = frozenset({"steps", "step_hours"})

    @call(
        "Read when flavors are free", answer=AvailabilityAnswer, refusals=(422,), tag=TAG,
        parameters=(
            query("steps", f"How many steps, 24 when left out, at most {MOST_STEPS}.", int),
            query("step_hours", f"Hours of a step, 1 when left out, at most {LONGEST_STEP_H}.", int),
        ),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Read how many units could be booked in the steps to come; promises count as taken, quota does not."""
        steps = _whole(request, "steps", 24, MOST_STEPS)
        step_h = _whole(request, "step_hours", 1, LONGEST_STEP_H)
        found = availability(steps=steps, step_h=step_h, now=timezone.now())
        return Response(
            {
                "step_hours": found.step_h,
                "starts": [instant(at) for at in found.starts],
                "flavors": [{"flavor": row.flavor.slug, "free": row.free} for row in found.rows],
            }
        )


def _whole(request: Request, name: str, usual: int, most: int) -> int:
    raw = request.query_params.get(name, str(usual))
    if not (raw.isascii() and raw.isdecimal() and len(raw) <= 6 and 1 <= int(raw) <= most):
        raise Invalid(fields={name: f"A whole number from 1 to {most}."})
    return int(raw)
