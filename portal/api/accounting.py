"""For operators: ended leases by two clocks, the check of the invariants, and the proof that nothing overlaps."""

from __future__ import annotations

from django.db import connection
from django.db.models import Sum
from django.db.models.functions import Coalesce
from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.filters import AccountingFilters
from portal.api.pagination import MAX_FEED_SIZE, Pages
from portal.api.representations import Row
from portal.api.responses import OverlapsAnswer, ResponseShape
from portal.api.responses_money import AccountingAnswer
from portal.api.wire import instant
from portal.common.models import InvariantCheck
from portal.leases.models import Lease
from portal.leases.states import LeaseState

TAG = "operations"
# Pairs of slot-holding placements on one device whose slots and periods both overlap.
OVERLAPS_SQL = """
SELECT count(*) FILTER (WHERE a.is_live AND b.is_live), count(*)
  FROM leases_placement a JOIN leases_placement b
    ON a.device_id = b.device_id AND a.id < b.id AND a.slots && b.slots AND a.period && b.period
 WHERE a.host_id IS NULL AND b.host_id IS NULL
"""


class Accounting(Endpoint):
    """Ended leases by two clocks."""

    parameters = AccountingFilters.names()

    @call(
        "List ended leases by two clocks", answer=AccountingAnswer, is_list=True,
        parameters=AccountingFilters.parameters(), tag=TAG,
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List ended leases with the agent's own active time and the seconds billed. Operators."""
        self.require_operator()
        pages = Pages(most=MAX_FEED_SIZE)
        rows = (
            Lease.objects.filter(state=LeaseState.ENDED)
            .select_related("request", "team")
            .annotate(
                billed_s=Coalesce(Sum("usage__seconds"), 0),
                quantity=Coalesce(Sum("usage__share_milli_seconds"), 0),
            )
        )
        found = pages.page(self.narrow(rows, AccountingFilters), request)
        return Response(pages.answer([accounting_row(lease) for lease in found]))


class BreachAnswer(ResponseShape):
    """An invariant that does not hold, since when it was seen, and some of the rows that break it."""

    name = s.CharField()
    promise = s.CharField()
    since = s.DateTimeField()
    offenders = s.ListField(child=s.CharField())


class InvariantsAnswer(ResponseShape):
    """The newest check of the invariants. `checked_at` null: none was finished yet, so nothing is known.

    `failure` says why the newest try, at `tried_at`, found out nothing; what was known before stays then.
    """

    checked_at = s.DateTimeField(allow_null=True)
    tried_at = s.DateTimeField(allow_null=True)
    failure = s.CharField(allow_blank=True)
    broken = BreachAnswer(many=True)


class Invariants(Endpoint):
    """What the hourly check of the invariants found."""

    @call("Read the check of the invariants", answer=InvariantsAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read what the newest hourly check of all invariants found. Operators."""
        self.require_operator()
        row = InvariantCheck.objects.first() or InvariantCheck()
        return Response(
            {
                "checked_at": instant(row.checked_at),
                "tried_at": instant(row.tried_at),
                "failure": row.failure,
                "broken": row.breaches,
            }
        )


class Overlaps(Endpoint):
    """The proof that nothing overlaps."""

    @call("Count overlapping placements", answer=OverlapsAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Count overlapping placements by a query over the rows; every figure but the first two may grow."""
        self.require_operator()
        with connection.cursor() as cursor:
            cursor.execute(OVERLAPS_SQL)
            live, ever = cursor.fetchone()
            cursor.execute("SELECT count(*) FROM leases_placement WHERE host_id IS NULL")
            (placements,) = cursor.fetchone()
        at = instant(timezone.now())
        return Response({"live": live, "ever": ever, "placements": placements, "checked_at": at})


def accounting_row(lease: Lease) -> Row:
    """Return an ended lease; its sums must be annotated."""
    return {
        "lease": lease.uid,
        "request": lease.request.uid,
        "team": lease.team.slug,
        "activated_at": instant(lease.activated_at),
        "ended_at": instant(lease.ended_at),
        "clean_at": instant(lease.clean_at),
        "end_reason": str(lease.end_reason),
        "agent_active_ms": lease.agent_active_ms,
        "billed_s": lease.billed_s,  # type: ignore[attr-defined]
        "share_milli_seconds": lease.quantity,  # type: ignore[attr-defined]
        "is_metered": lease.is_metered,
    }
