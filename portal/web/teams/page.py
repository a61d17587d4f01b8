"""Teams: the tree, one team with its quota, people, spend, leases and queue, and what its admins change."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.audit.memberships import end_role, give_role
from portal.audit.organisation import may_add_team, may_change_team
from portal.billing.labels import may_label_team
from portal.billing.selectors import currency, period_of, team_spend
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.common.moments import span
from portal.idle.selectors import idle_now
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Role, Team
from portal.teams.selectors import SEES_TEAM, Rights, visible_team, visible_teams
from portal.teams.services import roles_to_give
from portal.web.access import done, person, refused, rights_of
from portal.web.alerts.rows import alerts_of_team
from portal.web.idle.page import idle_row
from portal.web.quota_bars import quota_bar
from portal.web.teams.fair_share import standing_card
from portal.web.teams.forms import MemberForm
from portal.web.teams.holdings import leases_of, waiting_of
from portal.web.teams.priority import PriorityForm, grant_rows
from portal.web.teams.rows import (
    approval_hours,
    limit_lines,
    limits_above,
    lineage_quotas,
    members_of,
    spend_of,
    team_rows,
)

MOST_IDLE = 5


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the teams this person may see; somebody with one team goes straight to it."""
    rights = rights_of(request)
    teams, now = list(visible_teams(rights)), timezone.now()
    if len(teams) == 1:
        return redirect("web:team", teams[0].slug)
    rows = team_rows(teams, rights, team_spend([team.pk for team in teams], period_of(now), now=now))
    return render(request, "web/teams.html", {"rows": rows, "currency": currency()})


@require_safe
def team(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one team."""
    found = visible_team(rights_of(request), slug)
    return team_page(request, found)


@require_POST
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    """Give a person a role in the team."""
    rights = rights_of(request)
    found = visible_team(rights, slug)
    form = MemberForm(request.POST, roles=roles_to_give(rights, found))
    if not form.fields["role"].choices:  # type: ignore[attr-defined]
        raise Forbidden(_("Only an admin of the team adds people."))
    if not form.is_valid():
        return team_page(request, found, form, status=422)
    user, role = form.cleaned_data["username"], form.cleaned_data["role"]
    try:
        is_new = give_role(
            team=found, user=user, role=role, rights=rights, now=timezone.now(),
            ends_at=form.cleaned_data["until"],
        )  # fmt: skip
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error("until" if field == "ends_at" else field, text)
        return team_page(request, found, form, status=422)
    except BerthError as error:
        return refused(request, error, "web:team", slug)
    said = (
        _("%(name)s has that role in %(team)s.")
        if is_new
        else _("%(name)s had that role in %(team)s already.")
    )
    return done(request, said % {"name": user, "team": found.name}, "web:team", slug)


@require_POST
def remove_member(request: HttpRequest, slug: str, key: int) -> HttpResponse:
    """Take a role in the team away."""
    rights = rights_of(request)
    found = visible_team(rights, slug)
    try:
        name = end_role(team=found, membership_id=key, rights=rights, now=timezone.now())
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:team", slug)
    said = _("%(name)s no longer has that role in %(team)s.") % {"name": name, "team": found.name}
    still_sees = Rights(person(request)).has(found, *SEES_TEAM)
    return done(request, said, "web:team", slug) if still_sees else done(request, said, "web:teams")


def team_page(
    request: HttpRequest,
    team: Team,
    form: MemberForm | None = None,
    priority: PriorityForm | None = None,
    status: int = 200,
) -> HttpResponse:
    """Return a team's page; forms that were refused are given with their errors."""
    rights, now = rights_of(request), timezone.now()
    form = form or MemberForm(roles=roles_to_give(rights, team))
    quotas = lineage_quotas(team)
    row = next((one for one in quotas if one.team_id == team.pk), None)
    # Whoever sees a team sees all below it.
    below = list(Team.objects.filter(lineage__contains=[team.pk]).exclude(pk=team.pk))
    spent = team_spend([team.pk, *(one.pk for one in below)], period_of(now), now=now)
    standing = standing_card(team, rights, now=now)
    above = {t.pk: t for t in visible_teams(rights).filter(pk__in=team.lineage[:-1])}
    context = {
        "team": team,
        "above": [above[pk] for pk in team.lineage[:-1] if pk in above],
        "bar": quota_bar(team.name, row) if row else None,
        "limits": limits_above(team, quotas),
        "limit_lines": limit_lines(quotas, now=now),
        "spend": spend_of(team, spent, now=now),
        "approval_hours": approval_hours(team),
        "rows": team_rows(below, rights, spent),
        "members": members_of(team, rights),
        "form": form,
        "can_add": bool(form.fields["role"].choices),  # type: ignore[attr-defined]
        "may_ask": rights.has(team, Role.RESEARCHER, Role.ADMIN),
        "can_set_quota": may_set_quota(rights, team),
        "can_add_team": may_add_team(rights, team),
        "can_change": may_change_team(rights, team),
        "can_label": may_label_team(rights, team),
        "is_operator": rights.is_operator,
        "cohort": row.cohort.name if row and row.cohort else "",
        "grants": grant_rows(team, rights, now=now),
        "priority": priority or PriorityForm.fresh(now),
        "is_giving": priority is not None,
        "leases": leases_of(team, now=now),
        "alerts": alerts_of_team(rights, team, now=now)
        if rights.has(team, Role.ADMIN, Role.OPERATOR)
        else [],
        "idle": [idle_row(row) for row in idle_now(rights, team=team, most=MOST_IDLE)],
        "waiting": waiting_of(team),
        "standing": standing,
        "half_life": span(standing.half_life_s),
        "topics": f"team:{team.slug}",
    }
    return render(request, "web/team.html", context, status=status)
