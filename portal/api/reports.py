"""The chargeback report over HTTP: a month of the organisation, a team with those below it, or a person."""

from __future__ import annotations

from fractions import Fraction

from django.http import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.money import month_of
from portal.api.representations import Row
from portal.api.responses_money import ReportAnswer
from portal.api.wire import instant, money
from portal.billing.report import ChargebackReport, ChargebackRow, GroupBy, report_of
from portal.catalog.pricing import SHARE_HOUR
from portal.common.errors import Invalid
from portal.web.invoices.months import named
from portal.web.reports.forms import BY_TAG, grouping
from portal.web.reports.page import file_of, teams_of_report

TAG = "money"
KINDS = ", ".join([*(kind for kind in GroupBy.values if kind != GroupBy.TAG), "tag:NAME"])
OF_WHOM = (
    query("team", "Slug of a team: it and all teams below it."),
    query("person", "User name: what this person used in them."),
)


class ReportEndpoint(Endpoint):
    """A month, rolled up."""

    parameters = frozenset({"by", "team", "person"})

    @call(
        "Read the chargeback report", answer=ReportAnswer, refusals=(404, 422), tag=TAG,
        parameters=[query("by", f"What the rows are: {KINDS}; default team."), *OF_WHOM],
    )  # fmt: skip
    def get(self, request: Request, month: str) -> Response:
        """Read what a month came to over the teams in sight, running or closed, beside the month before."""
        chosen = grouping(request.query_params.get("by", GroupBy.TEAM))
        if chosen is None:
            raise Invalid(fields={"by": _("Choose one of: %(names)s.") % {"names": KINDS}})
        by, tag = chosen
        person = request.query_params.get("person", "")
        teams = teams_of_report(self.rights, request.query_params.get("team", ""))
        return Response(
            report_row(report_of(named(month), teams, by=by, tag=tag, username=person, now=timezone.now()))
        )


class ReportFile(Endpoint):
    """A month's lines as one file."""

    parameters = frozenset({"team", "person"})

    @call(
        "Download a month",
        media_type="text/csv",
        refusals=(404, 409),
        tag=TAG,
        parameters=OF_WHOM,
    )
    def get(self, request: Request, month: str, kind: str) -> HttpResponseBase:
        """Download a month as `lines.csv`, `lines.xlsx` or `report.pdf`, or its usage as FOCUS 1.2, `focus.csv`."""
        return file_of(
            self.rights,
            named(month),
            kind,
            slug=request.query_params.get("team", ""),
            person=request.query_params.get("person", ""),
        )


def report_row(report: ChargebackReport) -> Row:
    """Return a report as it goes out; teams are a tree by ``parent``, each holds those below it."""
    unit = report.currency
    return {
        "month": month_of(report.period),
        "by": f"{BY_TAG}{report.tag}" if report.tag else str(report.by),
        "is_closed": report.is_closed,
        "until": instant(report.until),
        "compared_with": month_of(report.before) if report.before else None,
        "unpriced": report.unpriced,
        "rows": [_group(row, unit) for row in report.groups],
        "total": _group(report.whole, unit),
        "days": [
            {"day": day.isoformat(), "amount": money(round(Fraction(sum(parts.values()), SHARE_HOUR)), unit)}
            for day, parts in report.exact_by_day.items()
        ],
    }


def _group(row: ChargebackRow, unit: str) -> Row:
    return {
        "key": row.key,
        "name": row.name,
        "parent": row.parent or None,
        "leases": row.leases,
        "share_milli_seconds": row.share_milli_seconds,
        "amount": money(row.amount_micro, unit),
        "accruing": money(row.accruing_micro, unit),
        "own": money(row.own_micro, unit),
        "before": money(row.before_micro, unit),
    }
