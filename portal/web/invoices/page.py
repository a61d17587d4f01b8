"""Invoices: the month by team, one invoice, one line with its usage records and lease events, CSV."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.billing.selectors import invoice_view, line_usage
from portal.catalog.pricing import exact_micro
from portal.common.errors import NotFound
from portal.teams.models import Team
from portal.teams.selectors import visible_team, visible_teams
from portal.web.access import rights_of
from portal.web.invoices.csv_file import invoice_csv
from portal.web.invoices.forms import InvoiceFilter
from portal.web.invoices.lists import board
from portal.web.invoices.months import all_months, named
from portal.web.invoices.rows import bill, filed_rows, gpu_seconds, micro_text, usage_rows

PER_PAGE = 50


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List the invoices of a month, one per team in sight."""
    now = timezone.now()
    months = all_months(now=now)
    form = InvoiceFilter(request.GET, months)
    period = form.month() or months[0]
    found = board(visible_teams(rights_of(request)), period, name=form.team(), now=now)
    context = {
        "form": form,
        "period": period,
        "month": str(period),
        "board": found,
        "page": Paginator(found.rows, PER_PAGE).get_page(request.GET.get("page")),
        "is_current": period == months[0],
    }
    return render(request, "web/invoices.html", context)


@require_safe
def invoice(request: HttpRequest, slug: str, month: str) -> HttpResponse:
    """Show a team's month: issued and frozen, or as a draft with what still accrues."""
    return render(request, "web/invoice.html", _context(request, slug, month, timezone.now()))


@require_safe
def download(request: HttpRequest, slug: str, month: str) -> HttpResponse:
    """Send the lines of an invoice as CSV."""
    view = _context(request, slug, month, timezone.now())["view"]
    response = HttpResponse(invoice_csv(view), content_type="text/csv; charset=utf-8")
    state = "-draft" if view.is_draft else ""
    response["Content-Disposition"] = f'attachment; filename="berth-{slug}-{month}{state}.csv"'
    return response


@require_safe
def line(request: HttpRequest, slug: str, month: str, key: str) -> HttpResponse:
    """Show one line with the usage records behind it and, below each, the events of its lease."""
    context = _context(request, slug, month, timezone.now())
    found = next((row for row in context["bill"].lines if row.key == key), None)
    if found is None:
        raise NotFound
    rated = next(row for row in context["view"].lines if row.key == key)
    if rated.note is not None:
        return redirect("web:note", rated.note.uid)
    if rated.external is not None:
        raise NotFound
    records = Paginator(line_usage(context["team"], context["period"], key), PER_PAGE)
    part = records.get_page(request.GET.get("page"))
    context |= {
        "line": found,
        "page": part,
        "usage": usage_rows(list(part.object_list)),
        "filed": filed_rows(rated.labels or []),
        "seconds": rated.seconds,
        "gpu_seconds": gpu_seconds(rated.share_milli_seconds),
        "gpu_hours": found.gpu_hours,
        "exact": micro_text(exact_micro(rated.share_milli_seconds, rated.micro_per_hour)),
    }
    return render(request, "web/invoice_line.html", context)


def _context(request: HttpRequest, slug: str, month: str, now: datetime) -> dict[str, Any]:
    team = visible_team(rights_of(request), slug)
    period = named(month)
    view = invoice_view(team, period, now=now)
    return {
        "team": team,
        "period": period,
        "month": month,
        "view": view,
        "bill": bill(view),
        "is_over": period.ends_at <= now,
        "can_correct": not view.is_draft and rights_of(request).is_finance,
        "has_below": Team.objects.filter(parent=team).exists(),
    }
