"""Invoices, usage and billing periods over HTTP."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpResponse
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import PAGING, call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.filters import UsageFilters
from portal.api.idempotency import once
from portal.api.money import (
    invoice_detail,
    month_of,
    period_detail,
    period_row,
    rehearsal_row,
    usage_row,
)
from portal.api.pagination import MAX_FEED_SIZE, PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses_money import (
    InvoiceAnswer,
    InvoiceRow,
    PeriodAnswer,
    PeriodDetail,
    RehearsalAnswer,
    UsageAnswer,
)
from portal.api.teams import month_or_now
from portal.api.wire import money
from portal.billing.closing import close_period
from portal.billing.models import BillingPeriod, Invoice, PeriodState, UsageRecord
from portal.billing.rehearsal import MOST_SEEN, rehearse_close
from portal.billing.selectors import InvoiceView, currency, invoice_view, line_usage
from portal.common.clock import db_now
from portal.common.errors import NotFound
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team, visible_teams
from portal.web.invoices.csv_file import invoice_csv
from portal.web.invoices.months import all_months, named
from portal.web.invoices.rows import month_totals
from portal.web.reports.page import pdf_answer

TAG = "money"


class Invoices(Endpoint):
    """A month's invoices."""

    parameters = PARAMETERS | {"month", "team"}

    @call(
        "List invoices", answer=InvoiceRow, is_list=True, refusals=(404,), tag=TAG,
        parameters=[*PAGING, query("month", "YYYY-MM, default now."), query("team", "Slug of the team.")],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List a month's invoices of the teams in sight: issued ones as frozen, drafts as of now."""
        pages, period = Pages(), month_or_now(request)
        rows = visible_teams(self.rights)
        slug = request.query_params.get("team")
        teams = pages.page(rows.filter(slug=slug) if slug else rows, request)
        return Response(pages.answer(_month_rows(teams, period)))


class OneInvoice(Endpoint):
    """A team's month."""

    @call("Read an invoice", answer=InvoiceAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str, month: str) -> Response:
        """Read a team's month with its lines; the lines add up to the total."""
        return Response(invoice_detail(_view(self.rights, slug, month, timezone.now())))


class InvoiceCsv(Endpoint):
    """A team's month as CSV."""

    @call("Download an invoice", media_type="text/csv", refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str, month: str) -> HttpResponse:
        """Download the lines of an invoice as CSV; no cell can be taken for a formula."""
        view = _view(self.rights, slug, month, timezone.now())
        answer = HttpResponse(invoice_csv(view), content_type="text/csv; charset=utf-8")
        answer["Content-Disposition"] = f'attachment; filename="berth-{view.team.slug}-{month}.csv"'
        return answer


class InvoicePdf(Endpoint):
    """A team's month on paper."""

    @call("Download an invoice as PDF", media_type="application/pdf", refusals=(404, 409), tag=TAG)
    def get(self, request: Request, slug: str, month: str) -> HttpResponse:
        """Download an invoice, or its draft, as PDF, in the caller's language; a conflict where none can be made."""
        now = timezone.now()
        return pdf_answer(_view(self.rights, slug, month, now), now=now)


class InvoiceLineUsage(Endpoint):
    """What one line is made of."""

    parameters = PARAMETERS

    @call(
        "Read the usage behind a line", answer=UsageAnswer, is_list=True, refusals=(404,), tag=TAG,
        parameters=PAGING,
    )  # fmt: skip
    def get(self, request: Request, slug: str, month: str, key: str) -> Response:
        """Read the usage records behind a line, by the `key` the line carries, newest first."""
        team, period = visible_team(self.rights, slug), named(month)
        pages = Pages(most=MAX_FEED_SIZE)
        records = pages.page(line_usage(team, period, key), request)
        if not records:
            raise NotFound
        for record in records:
            record.team = team
        return Response(pages.answer([usage_row(record) for record in records]))


class UsageEndpoint(Endpoint):
    """Usage records."""

    parameters = UsageFilters.names() | {"month"}

    @call(
        "List usage records", answer=UsageAnswer, is_list=True, refusals=(404,), tag=TAG,
        parameters=[*UsageFilters.parameters(), query("month", "Month as YYYY-MM.")],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List the billed intervals of the teams in sight, newest first."""
        pages = Pages(most=MAX_FEED_SIZE)
        rows = UsageRecord.objects.filter(team__in=visible_teams(self.rights)).select_related(
            "lease__user", "lease__flavor", "team", "late_for", "refund", "discount", "rate"
        )
        if "month" in request.query_params:
            rows = rows.filter(period=month_or_now(request))
        return Response(
            pages.answer([usage_row(r) for r in pages.page(self.narrow(rows, UsageFilters), request)])
        )


class Periods(Endpoint):
    """The billing periods."""

    @call("List billing periods", answer=PeriodAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List billing periods, the present one first."""
        return Response({"next": None, "results": [period_row(p) for p in all_months(now=timezone.now())]})


class OnePeriod(Endpoint):
    """One month of accounts."""

    @call("Read a month", answer=PeriodDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, month: str) -> Response:
        """Read a month and what has to hold before it is closed; a closed one has no checks. Finance."""
        self.require_finance()
        return Response(period_detail(named(month), now=timezone.now()))


class CloseBody(Body):
    """What was seen, if the close is to refuse anything else."""

    seen = Text(most=MOST_SEEN, allow_blank=True, default="", help_text="As the rehearsal said it.")


class RehearsePeriod(Endpoint):
    """What closing a month would produce."""

    @call("Rehearse a close", answer=RehearsalAnswer, refusals=(404, 409), tag=TAG)
    def get(self, request: Request, month: str) -> Response:
        """Read the drafts of all that a close would produce, beside the month before; changes nothing. Finance."""
        self.require_finance()
        return Response(rehearsal_row(rehearse_close(named(month), now=timezone.now())))


class ClosePeriod(Endpoint):
    """Close a month for good."""

    @call("Close a month", body=CloseBody, answer=PeriodAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, month: str) -> Response:
        """Close a month that is over: one invoice per team, then nothing in it changes. Finance.

        Refused with `conflict` and every sentence of the month's checks that does not hold yet, or what has changed
        since the rehearsal that said `seen`.
        """
        self.require_finance()
        seen = self.take(CloseBody)["seen"]
        period = named(month)
        close_period(period=period, actor=self.person, seen=seen, now=db_now())
        period.refresh_from_db()
        return Response(period_row(period))


def _view(rights: Rights, slug: str, month: str, now: datetime) -> InvoiceView:
    return invoice_view(visible_team(rights, slug), named(month), now=now)


def _month_rows(teams: list[Team], period: BillingPeriod) -> list[Row]:
    ids = [team.pk for team in teams]
    month, unit = month_of(period), currency()
    issued = {i.team_id: i for i in Invoice.objects.filter(team__in=ids, period=period, is_issued=True)}
    drafts = (
        {} if period.state == PeriodState.CLOSED else month_totals([period], Team.objects.filter(pk__in=ids))
    )
    totals = drafts.get(period.pk, {})
    return [
        {
            "team": team.slug,
            "month": month,
            "number": issued[team.pk].number if team.pk in issued else None,
            "is_draft": team.pk not in issued,
            "total": money(issued[team.pk].total_micro, issued[team.pk].currency)
            if team.pk in issued
            else money(totals.get(team.pk, 0), unit),
        }
        for team in teams
    ]
