"""Requests as pages show them: what was asked, where it stands, when it should start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.moments import span
from portal.leases import forecasting
from portal.leases.approvals import NOBODY_DECIDED
from portal.leases.models import LeaseRequest
from portal.leases.states import RequestState
from portal.web.figures import money, what_text


@dataclass(frozen=True)
class RequestRow:
    """One request in a list; ``position``, ``starts_at`` and ``by`` are None unless it waits and they are known.

    ``starts_at`` is the likely start, ``by`` the one that nine of ten keep.
    """

    uid: str
    url: str
    title: str
    what: str
    duration: str
    team: str
    author: str
    state: str
    reason: str
    position: int | None
    starts_at: datetime | None
    submitted_at: datetime
    quote: Decimal | None
    currency: str
    by: datetime | None = None


def request_rows(requests: Sequence[LeaseRequest], *, with_estimates: bool = True) -> list[RequestRow]:
    """Return rows for requests read with team, author and flavor; a bounded number of queries."""
    waiting = [r for r in requests if r.state == RequestState.QUEUED]
    places = forecasting.places(waiting)
    starts = forecasting.estimates(waiting) if with_estimates and waiting else {}
    return [_row(request, places.get(request.pk), starts.get(request.pk)) for request in requests]


def main_reason(request: LeaseRequest) -> str:
    """Return why the request stands where it stands, as one sentence; "" when there is nothing to say."""
    if request.state == RequestState.QUEUED:
        return (
            forecasting.sentence(request.reasons[0]) if request.reasons else _("Next in a scheduling cycle.")
        )
    if request.state == RequestState.AWAITING_APPROVAL:
        return _("Large requests of this team need somebody's approval first.")
    if request.state == RequestState.IMPOSSIBLE:
        given_up = _("It failed too often, so it was given up; an operator was told.")
        return forecasting.sentence(request.reasons[0]) if request.reasons else given_up
    if request.state == RequestState.REJECTED:
        note = request.decision_note
        return _(note) if note == NOBODY_DECIDED else note
    return ""


def _row(request: LeaseRequest, position: int | None, start: forecasting.Start | None) -> RequestRow:
    what = what_text(request.flavor.shown_name, request.count, request.nodes)
    return RequestRow(
        uid=request.uid,
        url=reverse("web:request", args=[request.uid]),
        title=request.name or what,
        what=what,
        duration=span(request.duration_s) or "",
        team=request.team.name,
        author=str(request.author),
        state=request.state,
        reason=main_reason(request),
        position=position,
        starts_at=start.likely_at if start else None,
        submitted_at=request.submitted_at,
        quote=money(request.quote_micro),
        currency=request.currency,
        by=start.by if start else None,
    )
