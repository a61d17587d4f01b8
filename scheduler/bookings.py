"""From when to when a granted lease is held, and what a booking means for its neighbours and its author."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal.leases.hold_periods import give_way
from portal.leases.models import LeaseRequest
from portal.leases.seats import organiser_of
from portal.leases.states import LeaseState
from portal.notifications.services import notify
from scheduler.engine.model import Grant, Snapshot
from scheduler.gangs import held_until


@dataclass(frozen=True, slots=True)
class LeaseStart:
    """The state a new lease begins in and from when to when its places are held."""

    state: LeaseState
    starts_at: datetime
    until: datetime


def lease_start(grant: Grant, asked_s: int, snapshot: Snapshot, *, now: datetime) -> LeaseStart:
    """Return when what is granted is held: from now on, or for the time that was booked and no longer."""
    if grant.starts_at is None:
        return LeaseStart(LeaseState.PREPARING, now, held_until(grant, asked_s, snapshot, now=now))
    until = grant.starts_at + timedelta(seconds=min(asked_s, grant.duration_s))
    return LeaseStart(LeaseState.BOOKED, grant.starts_at, until)


def make_room(grants: Sequence[Grant]) -> None:
    """Shorten margins of holds that reach into what is booked here. Call before the placements are stored."""
    for grant in grants:
        if grant.starts_at is not None:
            give_way(sorted({slot.device_id for slot in grant.slots}), grant.starts_at)


def tell_refused(request: LeaseRequest, reasons: Sequence[dict[str, Any]], *, at: datetime) -> None:
    """Tell the author of a booking that its time is taken, and which windows near it are free.

    Of a seat in a workshop its organiser is told: only they can ask again.
    """
    if request.starts_at is None:
        return
    taken = next((reason for reason in reasons if "nearest" in reason and "duration_s" in reason), {})
    wanted, nearest = request.starts_at.isoformat(), _texts(taken.get("nearest"))
    told = organiser_of(request) or request.author
    notify([told], "booking.taken", target=request.uid, at=at, starts_at=wanted, nearest=nearest)


def _texts(nearest: Any) -> list[str]:
    """Return the starts among the nearest windows as text, whatever shape the reason gives them in."""
    found = []
    for window in nearest if isinstance(nearest, (list, tuple)) else ():
        start = window.get("starts_at") if isinstance(window, dict) else window
        if start:
            found.append(start.isoformat() if isinstance(start, datetime) else str(start))
    return found[:3]
