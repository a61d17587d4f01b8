"""The inbox of approvers and team admins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.db.models import Count, Prefetch, prefetch_related_objects
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from portal.billing.metering import rates_by_model
from portal.billing.selectors import currency
from portal.catalog.discounts import DiscountWanted, discounts_over
from portal.catalog.models import Rate
from portal.catalog.pricing import quote_at
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.moments import moment, span
from portal.leases.approvals import approve_request, needs_second, open_seats, reject_request, terms_of
from portal.leases.effects import QueueEffect, effects_on_queue
from portal.leases.models import ApprovalStep, LeaseRequest, Reservation, Workshop
from portal.leases.requests import held, quote_of
from portal.leases.reservations import held_s, spec_of_series
from portal.leases.selectors import (
    awaiting_approval,
    awaiting_extensions,
    awaiting_series,
    awaiting_workshops,
    visible_request,
)
from portal.leases.states import Repeat, RequestState
from portal.leases.workshops import spec_of_workshop
from portal.quotas.models import Quota
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import MaybeDuration, NoteForm
from portal.web.figures import gpus, money, what_text
from portal.web.leases.page import waiting_view
from portal.web.leases.timeline import step_text
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
    terms: str = ""
    count: int = 1
    hours: str = ""
    is_job: bool = False
    needs_second: bool = False
    for_whom: str = ""
    given: Sequence[str] = ()


class DecisionForm(NoteForm):
    """A decision on a request, with how much of it is let through; left empty it is all."""

    count = forms.IntegerField(min_value=1, max_value=1000, required=False)
    duration = MaybeDuration(max_length=40, required=False)
    terms = forms.CharField(max_length=12, required=False)


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
    for_whom: str = ""


@dataclass(frozen=True)
class WorkshopDecision:
    """A workshop with what its approver needs to know; the price is None where none is in force."""

    workshop: Workshop
    what: str
    length: str
    seats: int
    price: Decimal | None
    currency: str
    for_whom: str = ""


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show what waits for this person's decision, the oldest first."""
    rights = rights_of(request)
    if not rights.may_decide:
        raise Forbidden(_("Approvals are for approvers and team admins."))
    return render(request, "web/approvals.html", inbox(request, rights))


def inbox(request: HttpRequest, rights: Rights) -> dict[str, Any]:
    """Return what waits for a person's decision, as the inbox and the home of approvers show it."""
    shown = Paginator(awaiting_approval(rights), PER_PAGE).get_page(request.GET.get("page"))
    waiting = [
        replace(
            view, for_whom=_for_whom(rights.require_seats(one.lease.team, one.lease.user_id, one.asked_by_id))
        )
        for one in awaiting_extensions(rights)[:MOST_EXTENSIONS]
        if (view := waiting_view(one.lease))
    ]
    series = awaiting_series(rights)[:MOST_EXTENSIONS]
    rates, unit = rates_by_model(one.flavor.device_model_id for one in series), currency()
    return {
        "page": shown,
        "decisions": decisions(shown.object_list, rights),
        "extensions": waiting,
        "series": [_series_decision(one, rates[one.flavor.device_model_id], unit, rights) for one in series],
        "workshops": [
            _workshop_decision(one, unit, rights)
            for one in awaiting_workshops(rights).annotate(n_seats=Count("seats"))[:MOST_EXTENSIONS]
        ],
    }


def _for_whom(seats: Sequence[Rights]) -> str:
    """Return in whose place a person would decide; "" where by rights of their own."""
    return str(seats[0].user) if seats and seats[0].since else ""


def _workshop_decision(workshop: Workshop, unit: str, rights: Rights) -> WorkshopDecision:
    seats: int = workshop.n_seats  # type: ignore[attr-defined]
    spec = spec_of_workshop(workshop).of_one
    try:
        quote = quote_of(workshop.team, workshop.flavor, spec, now=workshop.created_at)
        price = money(quote.amount_micro * seats)
    except Conflict:
        price = None
    return WorkshopDecision(
        workshop=workshop,
        what=workshop.flavor.shown_name,
        length=span(workshop.duration_s) or "",
        seats=seats,
        price=price,
        currency=unit,
        for_whom=_for_whom(rights.require_seats(workshop.team, workshop.organiser_id)),
    )


def _series_decision(series: Reservation, rates: Sequence[Rate], unit: str, rights: Rights) -> SeriesDecision:
    spec = spec_of_series(series)
    whole_s, starts_at = held_s(spec), series.starts_at.replace(microsecond=0)
    wanted = DiscountWanted(series.team_id, False, starts_at, starts_at + timedelta(seconds=whole_s))
    try:
        price = money(
            quote_at(
                rates,
                series.flavor,
                count=series.count,
                duration_s=whole_s,
                starts_at=starts_at,
                spans=discounts_over([wanted])[0],
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
        for_whom=_for_whom(rights.require_seats(series.team, series.author_id)),
    )


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject a request with a note; deciding twice is answered, not repeated."""
    rights = rights_of(request)
    found = visible_request(rights, uid)
    form = DecisionForm(request.POST)
    if not form.is_valid():
        return refused(request, Invalid(fields=_sentences(form)), "web:approvals")
    is_approved = form.cleaned_data["decision"] == "approve"
    actor, data = person(request), form.cleaned_data
    try:
        with held(found) as now:
            if is_approved:
                decided = approve_request(
                    request=found, actor=actor, rights=rights, note=data["note"], now=now,
                    count=data["count"], duration_s=data["duration"] or None, terms=data["terms"],
                )  # fmt: skip
            else:
                decided = reject_request(
                    request=found, actor=actor, rights=rights, note=data["note"], now=now
                )
    except (Conflict, Forbidden, Invalid) as error:
        return refused(request, error, "web:request", uid)
    if decided.state == RequestState.AWAITING_APPROVAL:
        said = _("Your approval is kept. A second person approves it too, one of you in a team above.")
    elif is_approved:
        said = _("Approved. It is in the queue now.")
    else:
        said = _("Rejected. %(who)s will read your note.") % {"who": found.author}
    return done(request, said, "web:approvals")


def decisions(requests: Iterable[LeaseRequest], rights: Rights) -> list[Decision]:
    """Return requests ready to decide on, with the room of their teams and what they do to others; few queries."""
    rows = list(requests)
    prefetch_related_objects(
        rows, Prefetch("approval_steps", ApprovalStep.objects.select_related("approver", "on_behalf_of"))
    )
    effects = effects_on_queue(rows)
    owners = {pk for r in rows for pk in r.team.lineage}
    quotas = {q.team_id: q for q in Quota.objects.filter(team_id__in=owners).select_related("team")}
    return [
        replace(
            _decision(request, row, quotas, effects.get(request.pk)), for_whom=_seat_name(request, rights)
        )
        for request, row in zip(rows, request_rows(rows, with_estimates=False), strict=True)
    ]


def _seat_name(request: LeaseRequest, rights: Rights) -> str:
    seats = rights.require_seats(request.team, request.author_id)
    return _for_whom(open_seats(request, seats, rights.user))


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
        terms=terms_of(request),
        count=request.count,
        hours=span(request.duration_s) or "",
        is_job=request.is_job,
        needs_second=needs_second(request),
        given=[step_text(step) for step in request.approval_steps.all()],
    )


def _sentences(form: NoteForm) -> dict[str, str]:
    return {name: " ".join(str(error) for error in errors) for name, errors in form.errors.items()}
