"""What a month's money bought nothing for, over HTTP."""

from __future__ import annotations

from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.money import month_of
from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.api.wire import money
from portal.billing.selectors import currency
from portal.billing.waste import FIGURES, WasteBy, WasteRow, waste_of
from portal.common.errors import Invalid
from portal.web.invoices.months import named
from portal.web.reports.page import teams_of_report


class WasteFigures(ResponseShape):
    """What was charged, and what of it bought nothing; idle and memory may be of the same lease."""

    charged = Money()
    idle = Money(help_text="Held, measured and not used.")
    unmeasured = Money(help_text="Charged for time that nobody measured: what of it idled is unknown.")
    failed = Money(help_text="Charged to leases that ended by a fault; in nothing else.")
    memory = Money(help_text="What the smallest size that holds the peak memory would cost less.")
    unseen = Money(help_text="Charged to leases whose peak memory is unknown.")
    reserved = Money(help_text="Booked time that had come and was not used: not billed.")


class WasteListed(WasteFigures):
    """The same of one team or person."""

    key = s.CharField()
    name = s.CharField()


class WasteAnswer(ResponseShape):
    """The waste of a month, of what is metered."""

    month = s.CharField()
    by = s.CharField()
    rows = WasteListed(many=True)
    total = WasteFigures()


class MonthWaste(Endpoint):
    """The waste of a month."""

    parameters = frozenset({"by", "team"})

    @call(
        "Read the waste of a month", answer=WasteAnswer, refusals=(404, 422), tag="money",
        parameters=[
            query("by", "team or person; default team."),
            query("team", "Slug of a team: it and all teams below it."),
        ],
    )  # fmt: skip
    def get(self, request: Request, month: str) -> Response:
        """Read what of a month's money bought nothing, by team or person, of the teams in sight."""
        by = request.query_params.get("by", WasteBy.TEAM)
        if by not in WasteBy.values:
            raise Invalid(
                fields={"by": _("Choose one of: %(names)s.") % {"names": ", ".join(WasteBy.values)}}
            )
        period, teams = named(month), teams_of_report(self.rights, request.query_params.get("team", ""))
        rows, whole = waste_of(period, teams, by=WasteBy(by), now=timezone.now())
        listed = [{"key": row.key, "name": row.name, **_figures(row)} for row in rows]
        return Response({"month": month_of(period), "by": by, "rows": listed, "total": _figures(whole)})


def _figures(row: WasteRow) -> Row:
    unit = currency()
    return {name.removesuffix("_micro"): money(getattr(row, name), unit) for name in FIGURES}
