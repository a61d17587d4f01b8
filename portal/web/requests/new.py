"""Asking for GPU time: the form, its live quote, and sending it."""

from __future__ import annotations

import logging
import secrets
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from portal.common.clock import db_now
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid, NotFound
from portal.common.moments import span
from portal.leases.availability import availability
from portal.leases.models import LeaseRequest
from portal.leases.requests import held, submit_request, withdraw_request
from portal.leases.selectors import visible_request
from portal.leases.templates import visible_templates
from portal.quotas.selectors import shortest_run_limit
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_teams
from portal.web.access import done, person, rights_of
from portal.web.availability import STEPS, strip, usual_sizes
from portal.web.figures import parse_duration, what_text
from portal.web.links import again_address, form_address
from portal.web.opening import opening_choices
from portal.web.requests.flavors import flavor_choices, reference_sentence
from portal.web.requests.forms import PRESETS, RequestForm
from portal.web.requests.options import NAMES, prefilled
from portal.web.requests.quote import quote_view
from portal.web.requests.templates import template_row
from portal.web.requests.tickets import first_use, forget, remember, seen_before

log = logging.getLogger(__name__)
MOST_TEMPLATES_SHOWN = 12
PREFILLED = (
    "team",
    "flavor",
    "count",
    "duration",
    "name",
    "purpose",
    "priority",
    "load_pattern",
    "opens",
    "instead_of",
    *NAMES,
)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the form, filled from the address; send it on POST."""
    teams = teams_to_ask_for(rights_of(request))
    if not teams:
        raise Forbidden(_("You are in no team that may ask for GPU time."))
    if request.method == "POST":
        form = _form(request, teams, request.POST)
        return _send(request, form)
    given = {name: request.GET[name] for name in PREFILLED if name in request.GET} | prefilled(request.GET)
    last = _last_asked(request)
    # An address that says nothing opens what was asked for last: for most people that is what they want again.
    usual = {} if given or last is None or not _can_be_again(last, teams) else _fields_of(again_address(last))
    start = {"ticket": secrets.token_hex(12), "opens": last.opens if last else ""}
    form = _form(request, teams, None, initial=start | usual | given)
    return _shown(request, form, last=last, is_usual=bool(usual))


@never_cache
@require_safe
def quote(request: HttpRequest) -> HttpResponse:
    """Return the fragment beside the form for the fields as they are now."""
    teams = teams_to_ask_for(rights_of(request))
    if not teams:
        raise Forbidden(_("You are in no team that may ask for GPU time."))
    form = _form(request, teams, request.GET)
    context, status = quote_context(rights_of(request), form)
    context["share"] = _share_link(request, form)
    return render(request, "web/parts/quote.html", context, status=status)


def _share_link(request: HttpRequest, form: RequestForm) -> str:
    """Return the whole address that fills the form as it is now, "" for one that could not be sent."""
    if not form.is_valid():
        return ""
    return request.build_absolute_uri(form_address(form.chosen_team.slug, form.spec()))


def quote_context(rights: Rights, form: RequestForm) -> tuple[dict[str, Any], int]:
    """Return what the quote shows for a bound form, and the HTTP status that goes with it."""
    if not form.data.get("flavor"):
        return {"is_empty": True}, 200
    if not form.is_valid():
        return {"problems": [str(error) for errors in form.errors.values() for error in errors]}, 422
    try:
        return {"quote": quote_view(rights, form.chosen_team, form.spec(), now=timezone.now())}, 200
    except Invalid as error:
        return {"problems": [str(sentence) for sentence in error.fields.values()]}, error.status
    except BerthError as error:
        return {"problems": [str(error.detail), str(error.next_step)]}, error.status


def teams_to_ask_for(rights: Rights) -> list[Team]:
    """Return the teams this person may ask for; the ones they belong to themselves come first."""
    own = set(rights.teams_with((Role.RESEARCHER, Role.ADMIN)))
    return sorted(visible_teams(rights, Role.RESEARCHER, Role.ADMIN), key=lambda t: (t.pk not in own, t.name))


def _form(request: HttpRequest, teams: list[Team], data: Any, **more: Any) -> RequestForm:
    may_go_first = rights_of(request).has_anywhere(Role.ADMIN)
    return RequestForm(data, teams=teams, may_go_first=may_go_first, **more)


def _shown(
    request: HttpRequest,
    form: RequestForm,
    *,
    last: LeaseRequest | None = None,
    is_usual: bool = False,
    status: int = 200,
) -> HttpResponse:
    team = form.chosen_team
    chosen, now = str(form["flavor"].value() or ""), timezone.now()
    hours = availability(steps=STEPS, now=now)
    context: dict[str, Any] = {
        "form": form,
        "flavors": flavor_choices(team, chosen=chosen, hours=hours, now=now),
        "memory": _memory(request),
        "is_usual": is_usual,
        "reference": reference_sentence(),
        "presets": [(text, span(parse_duration(text))) for text in PRESETS],
        "starts_from": _starting_points(request, last, list(form.teams.values())),
        "openings": opening_choices(request, chosen=str(form["opens"].value() or "")),
        "team": team,
        "run_limit": _run_limit(team),
        "one_team": len(form.teams) == 1,
        "free_hours": strip(usual_sizes(person(request)), now=now, seen=hours)[0],
    }
    if status == 200 and chosen:
        values = {name: form[name].value() for name in PREFILLED if name in form.fields}
        again = _form(request, list(form.teams.values()), {k: v for k, v in values.items() if v is not None})
        context |= quote_context(rights_of(request), again)[0] | {"share": _share_link(request, again)}
    else:
        context["is_empty"] = True
    return render(request, "web/request_new.html", context, status=status)


def _run_limit(team: Team) -> str:
    """Return how long the quota lets a lease of the team run, "" where only flavors bound it."""
    limit = shortest_run_limit(team)
    if limit is None:
        return ""
    return _("By the quota of %(team)s at most %(time)s in all.") % {
        "team": limit.team, "time": span(limit.most_s),
    }  # fmt: skip


def _memory(request: HttpRequest) -> str:
    """Return the least memory that somebody looks for, in GB, as the address or the form gives it; "" for any."""
    given = str(request.POST.get("memory") or request.GET.get("memory") or "")
    return given if given.isascii() and given.isdigit() and len(given) < 7 else ""


def _can_be_again(last: LeaseRequest, teams: list[Team]) -> bool:
    return last.flavor.is_active and last.team_id in {team.pk for team in teams}


def _fields_of(address: str) -> dict[str, str]:
    """Return the fields that an address of the form fills, but for what named one request."""
    given = QueryDict(urlsplit(address).query)
    found = {name: given[name] for name in PREFILLED if name in given and name not in ("name", "purpose")}
    return found | prefilled(given)


def _last_asked(request: HttpRequest) -> LeaseRequest | None:
    """Return what this person asked for last, by themselves and not for a job."""
    own = LeaseRequest.objects.filter(author=person(request), is_job=False, series=None)
    return own.select_related("team", "flavor").order_by("-id").first()


def _starting_points(
    request: HttpRequest, last: LeaseRequest | None, teams: list[Team]
) -> list[tuple[str, str, str]]:
    """Return what fills the form by one click, as (name, what it is, address): the last request and templates."""
    found = []
    if last is not None and _can_be_again(last, teams):
        what = what_text(last.flavor.shown_name, last.count, last.nodes)
        found.append((_("The last one again"), what, again_address(last)))
    rows = visible_templates(rights_of(request)).filter(flavor__is_active=True)[:MOST_TEMPLATES_SHOWN]
    shown = [template_row(row) for row in rows]
    return found + [(row.name, f"{row.what} · {row.duration} · {row.team}", row.url) for row in shown]


def _send(request: HttpRequest, form: RequestForm) -> HttpResponse:
    if not form.is_valid():
        return _shown(request, form, status=422)
    mark = f"request-sent:{person(request).pk}:{form.cleaned_data['ticket']}"
    if form.cleaned_data["ticket"] and not first_use(mark):
        return seen_before(mark)
    try:
        made = submit_request(
            team=form.chosen_team,
            actor=person(request),
            rights=rights_of(request),
            spec=form.spec(),
            now=db_now(),
        )
    except BerthError as error:
        forget(mark)
        return _refused(request, form, error)
    remember(mark, made.uid)
    if form.cleaned_data["instead_of"]:
        _take_back(request, form.cleaned_data["instead_of"])
    return done(request, _said(made), "web:request", made.uid)


def _said(made: LeaseRequest) -> str:
    if made.queued_at is None:
        return _("Sent for approval. You will be told when somebody has decided.")
    return _("Your request is in. This page follows it by itself.")


def _refused(request: HttpRequest, form: RequestForm, error: BerthError) -> HttpResponse:
    if isinstance(error, NotFound):
        raise error
    if isinstance(error, Invalid) and error.fields:
        form.refuse(error)
    else:
        form.add_error(None, f"{error.detail} {error.next_step}")
    return _shown(request, form, status=error.status)


def _take_back(request: HttpRequest, uid: str) -> None:
    """Withdraw the request that the new one replaces; one that started meanwhile stays."""
    try:
        old = visible_request(rights_of(request), uid)
        with held(old) as now:
            withdraw_request(request=old, actor=person(request), rights=rights_of(request), now=now)
    except (Conflict, Forbidden, NotFound) as error:
        log.info("request %s was not replaced: %s", uid, error)
