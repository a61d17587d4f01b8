"""One request: where it stands, why, what would help. Once granted, its lease takes over."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from portal.billing.labels import may_label_request, request_labels
from portal.common.errors import Conflict, Forbidden
from portal.leases import forecasting
from portal.leases.gangs import lives_with_others
from portal.leases.models import LeaseRequest
from portal.leases.promises import promise_of
from portal.leases.requests import held, spec_of, withdraw_request
from portal.leases.selectors import awaiting_approval, visible_leases, visible_request
from portal.leases.states import LeaseState, Opening, RequestState
from portal.leases.visible_reasons import all_as_seen
from portal.teams.models import Role
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.leases.apps import leads_to_apps
from portal.web.leases.rows import lease_rows
from portal.web.leases.timeline import request_steps
from portal.web.links import again_address
from portal.web.opening import asked_to_open, lease_opening
from portal.web.requests.approvals import Decision, decisions
from portal.web.requests.growth import growth_form
from portal.web.requests.options import wish_facts
from portal.web.requests.quote import OfferView, offer_views
from portal.web.requests.rows import request_rows
from portal.web.requests.templates import template_fields

TO_WITHDRAW = (RequestState.QUEUED, RequestState.AWAITING_APPROVAL)


@require_safe
def page(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a request; one whose only lease lives leads there, unless ``?show=request`` asks for itself.

    An open page that refreshes itself is not torn away: it is told of the lease, and its script moves on.
    """
    rights, now = rights_of(request), timezone.now()
    found = visible_request(rights, uid)
    leases = list(visible_leases(rights).filter(request=found).order_by("id"))
    live = [lease for lease in leases if lease.state != LeaseState.ENDED]
    leads_on = bool(live) and not lives_with_others(found) and request.GET.get("show") != "request"
    if leads_on and not request.headers.get("HX-Request"):
        return redirect("web:lease", live[0].uid)
    (row,) = request_rows([found])
    offers = _offers(found, row.starts_at, now)
    context: dict[str, Any] = {
        "request_row": row,
        "promise": promise_of(found),
        "asked": found,
        "leases": lease_rows([lease for lease in leases if lease not in live], now=now),
        "live_leases": [] if leads_on else lease_rows(live, now=now),
        "leads_to": lease_rows(live[:1], now=now)[0] if leads_on else None,
        "is_gang": found.nodes != 1,
        "wishes": wish_facts(found),
        "growth": growth_form(rights, found),
        "labels": request_labels(found),
        "may_label": may_label_request(rights, found),
        "steps": request_steps(found, leases, starts_at=row.starts_at),
        "reasons": [forecasting.sentence(reason) for reason in all_as_seen(rights, found.reasons)],
        "offers_now": [offer for offer in offers if offer.is_now],
        "offers_sooner": [offer for offer in offers if not (offer.is_now or offer.is_other)],
        "offers_other": [offer for offer in offers if offer.is_other],
        "may_withdraw": may_withdraw(rights, found),
        "decision": _decision(rights, found),
        "priority": spec_of(found).priority,
        "again": again_address(found) if found.flavor.is_active and not found.is_job else "",
        "template_url": _template_address(rights, found),
        "opening": asked_to_open(request, found),
        "opens_now": lease_opening(request, live[0]) if leads_on else None,
    }
    response = render(request, "web/request_detail.html", context)
    # The page that is open while it waits is the one whose button leads there: its policy is never sent anew.
    return leads_to_apps(request, response) if found.opens == Opening.NOTEBOOK else response


@require_POST
def withdraw(request: HttpRequest, uid: str) -> HttpResponse:
    """Take a waiting request back. Safe to repeat."""
    rights = rights_of(request)
    found = visible_request(rights, uid)
    try:
        with held(found) as now:
            withdraw_request(request=found, actor=person(request), rights=rights, now=now)
    except (Conflict, Forbidden) as error:
        return refused(request, error, "web:request", uid)
    return done(request, _("The request is withdrawn. Nothing was billed."), "web:request", uid)


def _template_address(rights: Rights, found: LeaseRequest) -> str:
    """Return where an admin of the team saves a request as a template, "" for anybody else."""
    if found.is_job or found.nodes != 1 or not rights.has(found.team, Role.ADMIN):
        return ""
    fields = template_fields(replace(spec_of(found), duration_s=found.duration_s))
    return f"{reverse('web:team_templates', args=[found.team.slug])}?{urlencode(fields)}#template-form"


def may_withdraw(rights: Rights, found: LeaseRequest) -> bool:
    """Say whether to offer withdrawing; the service decides for itself."""
    is_theirs = found.author_id == rights.user.pk or rights.has(found.team, Role.ADMIN, Role.OPERATOR)
    return is_theirs and found.state in TO_WITHDRAW


def _offers(found: LeaseRequest, starts_at: datetime | None, now: datetime) -> list[OfferView]:
    """Return what would start sooner than this waiting request, or be certain, or cost less."""
    if found.state != RequestState.QUEUED:
        return []
    spec = spec_of(found)
    seen = forecasting.preview(
        team=found.team, flavor=found.flavor, spec=spec, user_id=found.author_id, now=now, instead_of=found
    )
    other = ("later", "preemptible")
    sooner = [
        offer
        for offer in seen.offers
        if offer.kind in other or starts_at is None or offer.starts_at < starts_at
    ]
    return offer_views(found.team, sooner, spec=spec, instead_of=found.uid)


def _decision(rights: Rights, found: LeaseRequest) -> Decision | None:
    """Return what this person needs to decide on the request, or None when it is not theirs to decide."""
    if found.state != RequestState.AWAITING_APPROVAL:
        return None
    return next(iter(decisions(awaiting_approval(rights).filter(pk=found.pk), rights)), None)
