"""What those above a team decide: its quota, what it lends and to whom, and when it goes first."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from portal.common.errors import BerthError, Forbidden, Invalid
from portal.quotas.cohorts import cohort_of, cohorts_for, promises, too_small_for_those_below
from portal.quotas.grants import give_priority, revoke_priority
from portal.quotas.models import Quota
from portal.quotas.selectors import may_set_quota
from portal.quotas.services import planned_quota, set_quota
from portal.teams.models import Team
from portal.teams.selectors import visible_team
from portal.web.access import done, person, refused, rights_of
from portal.web.cohorts import cohort_card, promise_note
from portal.web.figures import gpus
from portal.web.policies.preview import try_quota
from portal.web.quota_bars import quota_bar
from portal.web.teams.forms import QuotaForm
from portal.web.teams.page import team_page
from portal.web.teams.priority import PriorityForm
from portal.web.teams.rows import limit_lines, limits_above, lineage_quotas

# How the fields of the service are called on the form.
FIELD_OF = {
    "most_duration_s": "most_duration",
    "gpu_seconds_a_month": "month_hours",
    "most_memory_mib": "most_memory",
}


@require_http_methods(["GET", "HEAD", "POST"])
def quota(request: HttpRequest, slug: str) -> HttpResponse:
    """Set a team's guarantee, ceiling, lending limit, cohort and limits."""
    rights = rights_of(request)
    found = visible_team(rights, slug)
    if not may_set_quota(rights, found):
        raise Forbidden(_("An admin of a team above decides on this quota."))
    quotas = lineage_quotas(found)
    row = next((one for one in quotas if one.team_id == found.pk), None)
    offered = [(cohort.pk, cohort.name) for cohort in cohorts_for(rights, found)]
    data = request.POST if request.method == "POST" else None
    form = QuotaForm.of(row, cohorts=offered) if data is None else QuotaForm(data, cohorts=offered)
    is_trying, tried = request.POST.get("do") == "preview", None
    if form.is_bound and form.is_valid():
        planned = _carried_out(request, found, form, planned_quota if is_trying else set_quota)
        if planned is not None and not is_trying:
            return done(request, _("The quota of %(team)s is set.") % {"team": found.name}, "web:team", slug)
        tried = try_quota(planned, rights) if planned is not None else None
    standing = cohort_of(row)
    below = too_small_for_those_below(found)
    context = {
        "team": found,
        "form": form,
        "bar": quota_bar(found.name, row) if row else None,
        "above": limits_above(found, quotas),
        "limit_lines": limit_lines(quotas, now=timezone.now()),
        "card": cohort_card(standing, rights) if standing else None,
        "promise": promise_note(promises()),
        "needed_below": gpus(below),
        "is_tried": is_trying and not form.errors,
        "tried": tried,
    }
    is_refused = form.is_bound and (not is_trying or bool(form.errors))
    return render(request, "web/team_quota.html", context, status=422 if is_refused else 200)


def _carried_out(
    request: HttpRequest, team: Team, form: QuotaForm, act: Callable[..., Quota]
) -> Quota | None:
    """Set the quota, or only plan it; None when it was refused, with the reason on the form."""
    try:
        return act(
            team=team,
            actor=person(request),
            rights=rights_of(request),
            guaranteed_milli=form.milli("guaranteed") or 0,
            ceiling_milli=form.milli("ceiling"),
            lending_milli=form.milli("lending"),
            cohort_id=form.cohort_id(),
            **form.limits(),
            version=form.cleaned_data["version"],
            now=timezone.now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(FIELD_OF.get(field, field), text)
    except BerthError as error:
        form.add_error(None, str(error.detail))
    return None


@require_POST
def give(request: HttpRequest, slug: str) -> HttpResponse:
    """Let a team go first for a time."""
    team = _team(request, slug)
    form = PriorityForm(request.POST)
    if form.is_valid():
        try:
            give_priority(
                team=team, actor=person(request), rights=rights_of(request), now=timezone.now(), **form.cleaned_data
            )  # fmt: skip
        except Invalid as error:
            for field, text in error.fields.items():
                form.add_error(field, text)
        else:
            return done(
                request,
                _("%(team)s has a priority boost for that time.") % {"team": team.name},
                "web:team",
                slug,
            )
    return team_page(request, team, priority=form, status=422)


@require_POST
def revoke(request: HttpRequest, slug: str, key: int) -> HttpResponse:
    """End a team's priority now."""
    team = _team(request, slug)
    try:
        revoke_priority(
            team=team, grant_id=key, actor=person(request), rights=rights_of(request), now=timezone.now()
        )
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:team", slug)
    return done(
        request, _("The priority boost of %(team)s is revoked.") % {"team": team.name}, "web:team", slug
    )


def _team(request: HttpRequest, slug: str) -> Team:
    team = visible_team(rights_of(request), slug)
    if not may_set_quota(rights_of(request), team):
        raise Forbidden(_("An admin of a team above decides on priority boosts."))
    return team
