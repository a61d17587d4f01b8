"""What a month's money bought nothing for, by team and by person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.billing.capacity_counts import counted_capacity
from portal.billing.conservation import CapacityKind, together
from portal.billing.models import BillingPeriod
from portal.billing.selectors import currency
from portal.billing.waste import WasteBy, WasteRow, waste_of
from portal.catalog.pricing import SHARE_HOUR
from portal.teams.selectors import Rights
from portal.web.access import rights_of
from portal.web.figures import money
from portal.web.invoices.months import all_months
from portal.web.reports.forms import ReportFilter
from portal.web.reports.page import teams_of_report


@dataclass(frozen=True, slots=True)
class ShownWaste:
    """A row as the page shows it, amounts in units of the currency."""

    name: str
    charged: Decimal | None
    idle: Decimal | None
    unmeasured: Decimal | None
    failed: Decimal | None
    memory: Decimal | None
    unseen: Decimal | None
    reserved: Decimal | None
    is_unmeasured: bool
    is_unseen: bool


@dataclass(frozen=True, slots=True)
class ShownStranded:
    """What layouts stranded of the whole fleet, and of how many device-hours nobody knows what they were."""

    cost: Decimal | None
    unknown_hours: int
    is_unknown: bool


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the waste of a month over the teams in sight."""
    now = timezone.now()
    teams = teams_of_report(rights_of(request))
    form = ReportFilter(request.GET, all_months(now=now), teams, ())
    for name in ("person", "by"):
        del form.fields[name]
    period, top = form.month(), form.team()
    if top is not None:
        teams = [team for team in teams if top.pk in team.lineage]
    lists = []
    for by in WasteBy:
        rows, whole = waste_of(period, teams, by=by, now=now)
        lists.append((by.label, [_shown(row) for row in rows]))
    context = {
        "form": form, "period": period, "lists": lists, "whole": _shown(whole), "currency": currency(), "team": top,
        "fleet": _fleet(rights_of(request), period, now) if top is None else None,
    }  # fmt: skip
    return render(request, "web/waste.html", context)


def _fleet(rights: Rights, period: BillingPeriod, now: datetime) -> ShownStranded | None:
    """Return what layouts stranded; None for those who do not see the whole fleet."""
    if not (rights.is_finance or rights.is_operator):
        return None
    counted = counted_capacity(period, now=now)
    if counted is None:
        return ShownStranded(None, 0, is_unknown=True)
    account = together(one.account for one in counted.devices)
    unknown = account.kinds[CapacityKind.UNKNOWN]
    return ShownStranded(
        _cents(round(account.stranded_micro)),
        unknown // SHARE_HOUR,
        bool(unknown and not account.stranded_micro),
    )


def _cents(micro: int) -> Decimal | None:
    return money(round(micro, -4))


def _shown(row: WasteRow) -> ShownWaste:
    return ShownWaste(
        row.name,
        _cents(row.charged_micro),
        _cents(row.idle_micro),
        _cents(row.unmeasured_micro),
        _cents(row.failed_micro),
        _cents(row.memory_micro),
        _cents(row.unseen_micro),
        _cents(row.reserved_micro),
        # Where nothing was measured nobody knows what idled: that is no zero.
        is_unmeasured=0 < row.charged_micro - row.failed_micro <= row.unmeasured_micro,
        is_unseen=0 < row.charged_micro - row.failed_micro <= row.unseen_micro,
    )
