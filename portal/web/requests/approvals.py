"""The inbox of approvers and team admins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from portal.billing.metering import rates_by_model
from portal.billing.selectors import currency
from portal.catalog.models import Rate
from portal.catalog.pricing import quote_at
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.moments import moment
from portal.leases.effects import QueueEffect, effects_on_queue
from portal.leases.models import LeaseRequest, Reservation
from portal.leases.requests import approve_request, held, reject_request
from portal.leases.reservations import held_s, spec_of_series
from portal.leases.selectors import awaiting_approval, awaiting_extensions, awaiting_series, visible_request
from portal.leases.states import Repeat
from portal.quotas.models import Quota
from portal.teams.models import Role
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import NoteForm
from portal.web.figures import gpus, money, span, what_text
from portal.web.leases.page import waiting_view
from portal.web.requests.options import wish_facts
from portal.web.requests.rows import RequestRow, request_rows

PER_PAGE = 20
MOST_EXTENSIONS = 50


@dataclass(frozen=True)
class Decision:
    """A request with what its approver needs to know; headroom None means no ceiling anywhere above."""

    row: RequestRow
    purpose: str
    takes: str
    room_left: str | None
    room_owner: str
    is_short: bool
    wishes: list[tuple[str, str, datetime | None]]
    effect: str = ""
    starts: str = ""


@dataclass(frozen=True)
class SeriesDecision:
    """A series with what its approver needs to know: its times, time and price over four weeks.

    The price is None where none is in force for a part of them.
    """

    series: Reservation
    title: str
    what: str
    length: str
    repeat: str
    n_times: int
    whole: str
    price: Decimal | None
    currency: str


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show what waits for this person's decision, the oldest first."""
    rights = rights_of(request)
    if not rights.has_anywhere(Role.APPROVER, Role.ADMIN):
        raise Forbidden(_("Approvals are for approvers and team admins."))
    return render(request, "web/approvals.html", inbox(request, rights))


def inbox(request: HttpRequest, rights: Rights) -> dict[str, Any]:
    """Return what waits for a person's decision, as the inbox and the home of approvers show it."""
    shown = Paginator(awaiting_approval(rights), PER_PAGE).get_page(request.GET.get("page"))
    waiting = [
        view for one in awaiting_extensions(rights)[:MOST_EXTENSIONS] if (view := waiting_view(one.lease))
    ]
    series = awaiting_series(rights)[:MOST_EXTENSIONS]
    rates, unit = rates_by_model(one.flavor.device_model_id for one in series), currency()
    return {
        "page": shown,
        "decisions": decisions(shown.object_list),
        "extensions": waiting,
        "series": [_series_decision(one, rates[one.flavor.device_model_id], unit) for one in series],
    }


def _series_decision(series: Reservation, rates: Sequence[Rate], unit: str) -> SeriesDecision:
    spec = spec_of_series(series)
    whole_s = held_s(spec)
    try:
        price = money(
            quote_at(
                rates, series.flavor, count=series.count, duration_s=whole_s, starts_at=series.starts_at
            ).amount_micro
        )
    except Conflict:
        price = None
    return SeriesDecision(
        series=series,
        title=series.name or what_text(series.flavor.shown_name, series.count),
        what=what_text(series.flavor.shown_name, series.count),
        length=span(series.duration_s) or "",
        repeat=str(Repeat(series.repeat).label),
        n_times=whole_s // series.duration_s,
        whole=span(whole_s) or "",
        price=price,
        currency=unit,
    )


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject a request with a note; deciding twice is answered, not repeated."""
    rights = rights_of(request)
    found = visible_request(rights, uid)
    form = NoteForm(request.POST)
    if not form.is_valid():
        return refused(request, Invalid(fields=_sentences(form)), "web:approvals")
    is_approved = form.cleaned_data["decision"] == "approve"
    act = approve_request if is_approved else reject_request
    try:
        with held(found) as now:
            act(request=found, actor=person(request), rights=rights, note=form.cleaned_data["note"], now=now)
    except (Conflict, Forbidden, Invalid) as error:
        return refused(request, error, "web:request", uid)
    said = (
        _("Approved. It is in the queue now.") if is_approved else _("Rejected. %(who)s will read your note.")
    )
    return done(request, said % {"who": found.author}, "web:approvals")


def decisions(requests: Iterable[LeaseRequest]) -> list[Decision]:
    """Return requests ready to decide on, with the room of their teams and what they do to others; few queries."""
    rows = list(requests)
    effects = effects_on_queue(rows)
    owners = {pk for r in rows for pk in r.team.lineage}
    quotas = {q.team_id: q for q in Quota.objects.filter(team_id__in=owners).select_related("team")}
    return [
        _decision(request, row, quotas, effects.get(request.pk))
        for request, row in zip(rows, request_rows(rows, with_estimates=False), strict=True)
    ]


def effect_text(effect: QueueEffect | None) -> str:
    """Return what an approval does to those who wait, as a sentence."""
    if effect is None:
        return _("unknown")
    if not effect.delayed:
        return _("nobody who waits starts later")
    who = ngettext("one request starts later", "%(n)d requests start later", effect.delayed) % {
        "n": effect.delayed
    }
    if effect.longest_s is None:
        return _("%(who)s, some not within two weeks") % {"who": who}
    return _("%(who)s, by %(span)s at most") % {"who": who, "span": span(effect.longest_s)}


def _starts_text(effect: QueueEffect | None) -> str:
    if effect is None or effect.starts_at is None:
        return ""
    return _("at once") if effect.is_now else moment(effect.starts_at)


def _decision(
    request: LeaseRequest, row: RequestRow, quotas: dict[int, Quota], effect: QueueEffect | None
) -> Decision:
    rooms = [
        ((quota.ceiling_milli or 0) - quota.used_milli, quota.team.name)
        for pk in request.team.lineage
        if (quota := quotas.get(pk)) is not None and quota.ceiling_milli is not None
    ]
    left, owner = min(rooms, default=(None, ""))
    return Decision(
        row=row,
        purpose=request.purpose,
        takes=gpus(request.cost_milli) or "",
        room_left=gpus(None if left is None else max(0, left)),
        room_owner=owner,
        is_short=left is not None and left < request.cost_milli,
        wishes=wish_facts(request),
        effect=effect_text(effect),
        starts=_starts_text(effect),
    )


def _sentences(form: NoteForm) -> dict[str, str]:
    return {name: " ".join(str(error) for error in errors) for name, errors in form.errors.items()}
