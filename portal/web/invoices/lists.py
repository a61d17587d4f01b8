"""A month's invoices side by side, and the months of the books side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from django.db.models import Count, QuerySet, Sum
from django.urls import reverse

from portal.billing.models import BillingPeriod, Invoice
from portal.billing.selectors import accruing_micro, currency
from portal.catalog.pricing import apportion
from portal.teams.models import Team
from portal.web.figures import money
from portal.web.invoices.months import is_closed
from portal.web.invoices.rows import month_totals
from portal.web.teams.rows import in_tree_order


@dataclass(frozen=True, slots=True)
class TeamInvoiceRow:
    """A team's month in the list; ``accruing`` is what running leases add."""

    team: str
    depth: int
    cost_centre: str
    number: str
    state: str
    amount: Decimal | None
    accruing: Decimal | None
    url: str
    csv_url: str


@dataclass(frozen=True, slots=True)
class MonthInvoices:
    """All invoices of a month in sight, with their sums."""

    rows: list[TeamInvoiceRow]
    total: Decimal | None
    accruing: Decimal | None
    currency: str
    is_closed: bool


@dataclass(frozen=True, slots=True)
class MonthRow:
    """A month of the books."""

    month: str
    first: date
    state: str
    invoices: int | None
    teams: int
    total: Decimal | None
    closed_at: datetime | None
    is_over: bool
    url: str


def board(teams: QuerySet[Team], period: BillingPeriod, *, name: str = "", now: datetime) -> MonthInvoices:
    """Return a month's invoices of these teams: issued ones as frozen, drafts as of now."""
    found = teams.filter(name__icontains=name) if name else teams
    ordered = in_tree_order(list(found))
    if is_closed(period):
        return _issued(ordered, period)
    totals = month_totals([period], teams)[period.pk]
    accruing = _cents(accruing_micro([team.pk for team in ordered], period, now=now))
    ids = {team.pk for team in ordered}
    rows = [_draft(team, ids, period, totals.get(team.pk, 0), accruing.get(team.pk, 0)) for team in ordered]
    return MonthInvoices(
        rows,
        money(sum(totals.get(team.pk, 0) for team in ordered)),
        money(sum(accruing.values())),
        currency(),
        False,
    )


def _cents(micro: Mapping[int, int]) -> dict[int, int]:
    """Return amounts rounded to cents that add up as printed."""
    return dict(zip(micro, apportion([Fraction(value) for value in micro.values()]), strict=True))


def month_rows(periods: Sequence[BillingPeriod], teams: QuerySet[Team], *, now: datetime) -> list[MonthRow]:
    """Return the months of the books with what they add up to."""
    issued = {
        row["period_id"]: row
        for row in Invoice.objects.filter(period__in=periods, team__in=teams, is_issued=True)
        .values("period_id")
        .annotate(n=Count("id"), total=Sum("total_micro"))
        .order_by()
    }
    drafts = month_totals([p for p in periods if not is_closed(p)], teams)
    return [_month(period, issued.get(period.pk), drafts.get(period.pk, {}), now) for period in periods]


def _issued(teams: Sequence[Team], period: BillingPeriod) -> MonthInvoices:
    ids = {team.pk for team in teams}
    invoices = {
        row.team_id: row for row in Invoice.objects.filter(period=period, team__in=ids, is_issued=True)
    }
    month = str(period)
    rows = [
        TeamInvoiceRow(
            team=invoices[team.pk].team_name,
            depth=_depth(team, ids),
            cost_centre=invoices[team.pk].cost_centre,
            number=invoices[team.pk].number or "",
            state="issued",
            amount=money(invoices[team.pk].total_micro),
            accruing=None,
            url=reverse("web:invoice", args=[team.slug, month]),
            csv_url=reverse("web:invoice_csv", args=[team.slug, month]),
        )
        for team in teams
        if team.pk in invoices
    ]
    total = money(sum(row.total_micro for row in invoices.values()))
    first: Any = next(iter(invoices.values()), None)
    return MonthInvoices(rows, total, None, first.currency if first else currency(), True)


def _draft(team: Team, ids: set[int], period: BillingPeriod, amount: int, accruing: int) -> TeamInvoiceRow:
    month = str(period)
    return TeamInvoiceRow(
        team=team.name,
        depth=_depth(team, ids),
        cost_centre=team.cost_centre,
        number="",
        state="draft",
        amount=money(amount),
        accruing=money(accruing) if accruing else None,
        url=reverse("web:invoice", args=[team.slug, month]),
        csv_url=reverse("web:invoice_csv", args=[team.slug, month]),
    )


def _depth(team: Team, ids: set[int]) -> int:
    return sum(1 for pk in team.lineage[:-1] if pk in ids)


def _month(
    period: BillingPeriod, issued: Mapping[str, Any] | None, drafts: dict[int, int], now: datetime
) -> MonthRow:
    closed = is_closed(period)
    month = str(period)
    total = (issued["total"] if issued else 0) if closed else sum(drafts.values())
    return MonthRow(
        month=month,
        first=period.month,
        state=period.state,
        invoices=(issued["n"] if issued else 0) if closed else None,
        teams=len(drafts),
        total=money(total),
        closed_at=period.closed_at,
        is_over=period.ends_at <= now,
        url=reverse("web:period", args=[month]),
    )
