"""The chargeback report: a month of the organisation, of a team with those below it, or of a person."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import FileResponse, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.billing.energy import EnergyBy, energy_of_month
from portal.billing.labels import tag_names
from portal.billing.models import BillingPeriod
from portal.billing.report import BY_LABEL, GroupBy, report_of
from portal.billing.selectors import InvoiceView, invoice_view
from portal.common.errors import NotFound
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_team, visible_teams
from portal.web.access import rights_of
from portal.web.energy_figures import shown_energy
from portal.web.figures import money
from portal.web.invoices.months import all_months, named
from portal.web.invoices.rows import gpu_hours
from portal.web.reports import files
from portal.web.reports.forms import ReportFilter
from portal.web.reports.paper import pdf
from portal.web.reports.printed import invoice_paper
from portal.web.reports.rows import ORDER, change_of, day_chart, report_rows, unpriced_text
from portal.web.teams.rows import in_tree_order

PER_PAGE = 100


def teams_of_report(rights: Rights, slug: str = "") -> list[Team]:
    """Return the teams in sight, or one of them with those below it, in tree order; raises NotFound."""
    teams = in_tree_order(list(visible_teams(rights)))
    if not slug:
        return teams
    top = visible_team(rights, slug)
    return [team for team in teams if top.pk in team.lineage]


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the report of a month."""
    now = timezone.now()
    teams = teams_of_report(rights_of(request))
    months = all_months(now=now)
    asked = next((row for row in months if str(row) == request.GET.get("month")), months[0])
    form = ReportFilter(request.GET, months, teams, tag_names(teams, asked.pk))
    period, top = form.month(), form.team()
    if top is not None:
        teams = [team for team in teams if top.pk in team.lineage]
    by, tag = form.by()
    report = report_of(period, teams, by=by, tag=tag, username=form.person(), now=now)
    ordering = request.GET.get("ordering", "-cost")
    if ordering.removeprefix("-") not in ORDER:
        ordering = "-cost"
    energy = energy_of_month(period, teams, by=EnergyBy.TEAM, person=form.person(), now=now)
    rows = report_rows(report, ordering=ordering, person=form.person())
    whole = report.whole
    context = {
        "form": form,
        "period": period,
        "month": str(period),
        "team": top,
        "person": form.person(),
        "report": report,
        "by": _("Tag %(name)s") % {"name": tag} if tag else by.label,
        "is_tree": by == GroupBy.TEAM,
        "is_split": by in BY_LABEL,
        "page": Paginator(rows, PER_PAGE).get_page(request.GET.get("page")),
        "ordering": ordering,
        "chart": day_chart(report),
        "cost": money(whole.cost_micro),
        "accruing": money(whole.accruing_micro),
        "before": money(whole.before_micro),
        "change": change_of(whole),
        "leases": whole.leases,
        "gpu_hours": gpu_hours([whole.share_milli_seconds])[0],
        "unpriced": unpriced_text(report.unpriced),
        "energy": shown_energy(energy[1]),
        "kinds": files.KINDS,
        "may_mail": rights_of(request).has_anywhere(Role.ADMIN, Role.FINANCE),
        "query": _query(top, form.person()),
    }
    return render(request, "web/reports.html", context)


def _query(top: Team | None, person: str) -> str:
    given = {"team": top.slug if top else "", "person": person}
    text = urlencode({name: value for name, value in given.items() if value})
    return f"?{text}" if text else ""


@require_safe
def download(request: HttpRequest, month: str, kind: str) -> FileResponse:
    """Send the lines of a month as one file."""
    return file_of(
        rights_of(request),
        named(month),
        kind,
        slug=request.GET.get("team", "")[:50],
        person=request.GET.get("person", "")[:150],
    )


def file_of(rights: Rights, period: BillingPeriod, kind: str, *, slug: str, person: str) -> FileResponse:
    """Return the file of a kind of ``files.KINDS``; raises NotFound for another kind or a team out of sight."""
    if kind not in files.KINDS:
        raise NotFound
    return files.answer(kind, period, teams_of_report(rights, slug), person=person, slug=slug)


@require_safe
def invoice_pdf(request: HttpRequest, slug: str, month: str) -> HttpResponse:
    """Send an invoice as PDF."""
    now = timezone.now()
    return pdf_answer(invoice_view(visible_team(rights_of(request), slug), named(month), now=now), now=now)


def pdf_answer(view: InvoiceView, *, now: datetime) -> HttpResponse:
    """Return an invoice, or its draft, as a PDF to keep; raises Conflict where none can be made."""
    response = HttpResponse(pdf(invoice_paper(view, now=now)), content_type="application/pdf")
    state = "-draft" if view.is_draft else ""
    name = f"berth-{view.team.slug}-{view.period}{state}.pdf"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
