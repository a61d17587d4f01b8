"""The period board: open and closed months, and closing one for good."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from portal.billing.checklist import close_items, is_ready
from portal.billing.closing import close_period
from portal.billing.periods import month_zones, set_month_zone
from portal.billing.rehearsal import MOST_SEEN, rehearse_close
from portal.billing.selectors import currency
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.common.zones import zone_names
from portal.teams.models import Role
from portal.teams.selectors import visible_teams
from portal.web.access import done, person, refused, rights_of
from portal.web.figures import money
from portal.web.invoices.forms import ZoneForm
from portal.web.invoices.lists import board, month_rows
from portal.web.invoices.months import all_months, is_closed, named
from portal.web.invoices.rehearsal import rehearsal_rows


def require_finance(request: HttpRequest) -> None:
    """Raise Forbidden for everybody but finance."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show every month of the books."""
    require_finance(request)
    now = timezone.now()
    return _periods_page(request, ZoneForm(initial={"since": month_zones(now=now).earliest}), now)


@require_POST
def zone(request: HttpRequest) -> HttpResponse:
    """Let months begin at midnight in another time zone."""
    require_finance(request)
    now, form = db_now(), ZoneForm(request.POST)
    if form.is_valid():
        try:
            set_month_zone(
                zone=form.cleaned_data["zone"],
                since=form.cleaned_data["since"],
                actor=person(request),
                now=now,
            )
        except Invalid as error:
            for field, text in error.fields.items():
                form.add_error(field, text)
        else:
            return done(request, _("The time zone of months is set."), "web:periods")
    return _periods_page(request, form, now)


def _periods_page(request: HttpRequest, form: ZoneForm, now: datetime) -> HttpResponse:
    teams = visible_teams(rights_of(request), Role.FINANCE)
    rows = month_rows(all_months(now=now), teams, now=now)
    context = {
        "rows": rows,
        "due": [row for row in rows if row.is_over and row.state != "closed"],
        "currency": currency(),
        "zones": month_zones(now=now),
        "zone_form": form,
        "zone_names": sorted(zone_names()),
    }
    return render(request, "web/invoice_periods.html", context, status=422 if form.is_bound else 200)


@require_safe
def period(request: HttpRequest, month: str) -> HttpResponse:
    """Show one month: the checklist before it is closed, what was issued after."""
    require_finance(request)
    now = timezone.now()
    found = named(month)
    checks = [] if is_closed(found) else close_items(found, now=now)
    context = {
        "period": found,
        "month": month,
        "checks": checks,
        "is_over": found.ends_at <= now,
        "can_close": bool(checks) and is_ready(checks),
        "board": board(visible_teams(rights_of(request), Role.FINANCE), found, now=now),
    }
    return render(request, "web/invoice_period.html", context)


@require_safe
def rehearsal(request: HttpRequest, month: str) -> HttpResponse:
    """Show what closing a month would produce, beside the month before; changes nothing."""
    require_finance(request)
    now = timezone.now()
    found = named(month)
    if is_closed(found):
        return redirect("web:period", month)
    rehearsed = rehearse_close(found, now=now)
    context = {
        "period": found,
        "month": month,
        "checks": rehearsed.items,
        "is_over": found.ends_at <= now,
        "can_close": rehearsed.can_close,
        "rehearsal": rehearsed,
        "before": rehearsed.before,
        "rows": rehearsal_rows(rehearsed),
        "total": money(rehearsed.total_micro),
        "ledger": money(rehearsed.ledger_micro),
        "is_equal": rehearsed.total_micro == rehearsed.ledger_micro,
        "total_before": money(sum(row.before_micro or 0 for row in rehearsed.invoices))
        if rehearsed.before
        else None,
        "hidden": {"seen": rehearsed.seen},
        "currency": currency(),
    }
    return render(request, "web/invoice_rehearsal.html", context)


@require_POST
def close(request: HttpRequest, month: str) -> HttpResponse:
    """Close a month: one invoice per team, then nothing in it changes any more."""
    require_finance(request)
    found = named(month)
    try:
        seen = request.POST.get("seen", "")[:MOST_SEEN]
        issued = close_period(period=found, actor=person(request), seen=seen, now=db_now())
    except BerthError as error:
        return refused(request, error, "web:rehearsal" if seen else "web:period", month)
    said = ngettext(
        "%(month)s is closed: %(n)d invoice issued.",
        "%(month)s is closed: %(n)d invoices issued.",
        len(issued),
    )
    return done(request, said % {"month": month, "n": len(issued)}, "web:period", month)
