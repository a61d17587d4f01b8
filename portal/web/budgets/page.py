"""Pages of a team's budgets: how the one in force runs down, what was and is planned, and the forms to set them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.billing.budgets import BudgetCourse, budget_course, figure_of
from portal.billing.selectors import currency
from portal.budgets.models import BudgetCrossing, TeamBudget
from portal.budgets.periods import month_start, stretch_at
from portal.budgets.services import budgets_at, change_budget, end_budget, make_budget, may_set_budget
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid, NotFound
from portal.common.months import Months
from portal.teams.models import Team
from portal.teams.selectors import visible_team, visible_teams
from portal.web.access import done, person, refused, rights_of
from portal.web.budgets.forms import BudgetForm
from portal.web.budgets.picture import budget_picture
from portal.web.figures import money


@dataclass(frozen=True, slots=True)
class ThresholdRow:
    """A threshold with the amount that it lies at and whether, and since when, it is reached."""

    percent: int
    amount: Decimal | None
    what: str
    basis: str
    is_reached: bool
    reached_at: datetime | None


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget of the list."""

    key: int
    amount: Decimal | None
    each: str
    months: str
    state: str
    can_change: bool
    can_end: bool


@dataclass(frozen=True, slots=True)
class BudgetAbove:
    """The budget of a team above, which binds this one too; amounts only for those who see that team."""

    name: str
    url: str
    percent: int


@require_safe
def page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a team's budgets and how the one in force runs down."""
    rights, now, unit = rights_of(request), db_now(), currency()
    team = visible_team(rights, slug)
    may = may_set_budget(rights, team)
    calendar = Months()
    rows = list(TeamBudget.objects.filter(team=team).prefetch_related("thresholds"))
    own = next((row for row in rows if stretch_at(row, now, calendar) is not None), None)
    course = None if own is None else budget_course(team, own, now=now)
    url = reverse("web:invoices") + f"?team={team.slug}"
    context = {
        "team": team,
        "course": course,
        "picture": course and budget_picture(course, unit, url=url, link=_("Invoices")),
        "period": course and _months(course.months.since, course.months.until),
        "figures": course and _figures(course),
        "thresholds": _thresholds(course) if course else [],
        "own": own,
        "rows": [_row(row, may, now) for row in rows],
        "above": _above(request, team, now),
        "currency": unit,
        "may": may,
    }
    return render(request, "web/team_budget.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, slug: str) -> HttpResponse:
    """Give a team a budget."""
    team, now = _team(request, slug), db_now()
    form = (
        BudgetForm(request.POST) if request.method == "POST" else BudgetForm.of(None, month=month_start(now))
    )
    if form.is_bound and form.is_valid():
        try:
            make_budget(
                team=team, actor=person(request), rights=rights_of(request), spec=form.spec(), now=now
            )
        except Invalid as error:
            _show(form, error)
        else:
            return done(request, _("%(team)s has a budget.") % {"team": team.name}, "web:team_budget", slug)
    return _form_page(request, team, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def change(request: HttpRequest, slug: str, key: int) -> HttpResponse:
    """Change a budget."""
    team, now = _team(request, slug), db_now()
    row = TeamBudget.objects.filter(team=team, pk=key).first()
    if row is None:
        raise NotFound
    form = (
        BudgetForm(request.POST) if request.method == "POST" else BudgetForm.of(row, month=month_start(now))
    )
    if form.is_bound and form.is_valid():
        try:
            change_budget(
                team=team, budget_id=key, actor=person(request), rights=rights_of(request), spec=form.spec(),
                version=form.cleaned_data["version"] or 0, now=now,
            )  # fmt: skip
        except Invalid as error:
            _show(form, error)
        except BerthError as error:
            form.add_error(None, str(error.detail))
        else:
            return done(request, _("The budget is changed."), "web:team_budget", slug)
    return _form_page(request, team, form, row)


@require_POST
def end(request: HttpRequest, slug: str, key: int) -> HttpResponse:
    """End a budget with this month, or take back one that has not begun."""
    team = _team(request, slug)
    try:
        left = end_budget(
            team=team, budget_id=key, actor=person(request), rights=rights_of(request), now=db_now()
        )
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:team_budget", slug)
    said = _("The budget ends with this month.") if left else _("The planned budget is taken back.")
    return done(request, said, "web:team_budget", slug)


def _team(request: HttpRequest, slug: str) -> Team:
    team = visible_team(rights_of(request), slug)
    if not may_set_budget(rights_of(request), team):
        raise Forbidden(_("Finance or an admin of a team above decides on this budget."))
    return team


def _form_page(request: HttpRequest, team: Team, form: BudgetForm, row: TeamBudget | None) -> HttpResponse:
    context = {"team": team, "form": form, "row": row, "currency": currency()}
    return render(request, "web/team_budget_edit.html", context, status=422 if form.is_bound else 200)


def _show(form: BudgetForm, error: Invalid) -> None:
    """Show a refusal at the fields it names."""
    names = {"ends_before": "last_month", "is_monthly": "kind", "thresholds": None}
    for name, text in error.fields.items():
        form.add_error(names.get(name, name), text)


def _figures(course: BudgetCourse) -> dict[str, Any]:
    """Return the amounts of the running period; what is left may be below zero."""
    standing, budget = course.standing, course.budget.amount_micro
    return {
        "amount": money(budget),
        "spent": money(standing.spent),
        "held": money(standing.held),
        "waiting": money(standing.waiting),
        "left": money(budget - standing.spent - standing.held - standing.waiting),
        "percent": course.percent,
        "tone": "accent" if course.percent < 80 else "warn" if course.percent < 100 else "bad",
    }


def _thresholds(course: BudgetCourse) -> list[ThresholdRow]:
    crossings = BudgetCrossing.objects.filter(budget=course.budget, since=course.months.since)
    reached = {(row.basis, row.percent, row.action): row.at for row in crossings}
    rows = []
    for one in course.budget.thresholds.all():
        figure, level = figure_of(course, one), course.budget.amount_micro * one.percent
        rows.append(
            ThresholdRow(
                percent=one.percent,
                amount=money(level // 100),
                what=str(one.get_action_display()),
                basis=str(one.get_basis_display()),
                is_reached=figure is not None and figure * 100 >= level,
                reached_at=reached.get((one.basis, one.percent, one.action)),
            )
        )
    return rows


def _row(row: TeamBudget, may: bool, now: datetime) -> BudgetRow:
    month = month_start(now)
    is_over = row.ends_before is not None and row.ends_before <= month
    state = (
        pgettext("budget", "over")
        if is_over
        else pgettext("budget", "in force")
        if row.starts_on <= month
        else pgettext("budget", "planned")
    )
    return BudgetRow(
        key=row.pk,
        amount=money(row.amount_micro),
        each=_("each month") if row.is_monthly else _("all months together"),
        months=_months(row.starts_on, row.ends_before),
        state=state,
        can_change=may and not is_over,
        can_end=may and not is_over and (row.ends_before is None or row.starts_on > month),
    )


def _above(request: HttpRequest, team: Team, now: datetime) -> list[BudgetAbove]:
    """Return the budgets of teams above in force; their figures only where this person sees that team."""
    seen = {t.pk: t for t in visible_teams(rights_of(request)).filter(pk__in=team.lineage[:-1])}
    found = []
    for pk, budget in budgets_at(seen, now).items():
        course = budget_course(seen[pk], budget, now=now)
        if course is not None:
            url = reverse("web:team_budget", args=[seen[pk].slug])
            found.append(BudgetAbove(seen[pk].name, url, course.percent))
    return found


def _months(first: date, until: date | None) -> str:
    """Return months as people write them: "November 2026", or from one to another."""
    form = pgettext("format of a month", "F Y")
    if until is None:
        return _("from %(month)s on") % {"month": date_format(first, form)}
    last = until - timedelta(days=1)
    if last.replace(day=1) == first:
        return date_format(first, form)
    return _("%(first)s to %(last)s") % {"first": date_format(first, form), "last": date_format(last, form)}
