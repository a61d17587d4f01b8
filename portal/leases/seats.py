"""Seats of workshops: a slice starts when its person comes, and goes back when nobody does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict, NotFound
from portal.common.moments import moment
from portal.leases.models import Lease, LeaseRequest, Workshop, WorkshopSeat
from portal.leases.states import Approval, RequestState
from portal.leases.workshops import give_up, lock_requests, lock_workshop
from portal.notifications.services import notify

# Whoever is early has come, too; the slice starts at its time.
EARLY: Final = timedelta(minutes=15)
SOON: Final = timedelta(days=1)
BACK, OPEN, AHEAD, CAME, NO_SLICE = "returned", "open", "ahead", "came", "no_slice"


@dataclass(frozen=True, slots=True)
class SeatView:
    """A seat and what became of it.

    ``state`` is one of: ahead (booked, or being booked), open (can be started now), came, returned (nobody came, or it
    was given back), no_slice. ``lease`` is the newest lease of a slice that was started.
    """

    seat: WorkshopSeat
    state: str
    request_state: str
    lease: Lease | None


def seat_views(seats: Iterable[WorkshopSeat], *, now: datetime) -> list[SeatView]:
    """Return seats with what became of them, in their order; user, workshop and request are at hand."""
    rows = list(seats)
    newest: dict[int, Lease] = {}
    found = Lease.objects.filter(request__in=[seat.request_id for seat in rows if seat.request_id])
    for lease in found.order_by("generation", "id"):
        newest[lease.request_id] = lease
    return [_view(seat, newest.get(seat.request_id or 0), now) for seat in rows]


def _view(seat: WorkshopSeat, lease: Lease | None, now: datetime) -> SeatView:
    workshop, state = seat.workshop, str(seat.request.state) if seat.request else ""
    has_begun = lease is not None and lease.activated_at is not None
    shown = lease if seat.claimed_at is not None or has_begun else None
    if seat.claimed_at is not None:
        return SeatView(seat, CAME, state, shown)
    if seat.returned_at is not None or state in (RequestState.WITHDRAWN, RequestState.EXPIRED):
        return SeatView(seat, BACK, state, None)
    if state == RequestState.IMPOSSIBLE or (not state and workshop.approval != Approval.AWAITING):
        return SeatView(seat, NO_SLICE, state, None)
    is_open = bool(state) and workshop.starts_at - EARLY <= now < workshop.returns_at
    return SeatView(seat, OPEN if is_open else AHEAD, state, None)


def seats_of(workshop: Workshop, *, now: datetime) -> list[SeatView]:
    """Return the seats of a workshop by name."""
    rows = workshop.seats.select_related("user", "workshop", "request")
    return seat_views(rows.order_by("user__display_name", "user__username"), now=now)


def own_seat(user: User, workshop: Workshop, *, now: datetime) -> SeatView | None:
    """Return somebody's own seat in a workshop, None where they have none."""
    seat = workshop.seats.select_related("user", "workshop__flavor", "request").filter(user=user).first()
    return seat_views([seat], now=now)[0] if seat is not None else None


def seats_ahead(user: User, *, now: datetime) -> list[SeatView]:
    """Return somebody's seats that can be started now or begin within a day, the next first."""
    rows = WorkshopSeat.objects.filter(
        user=user,
        claimed_at=None,
        returned_at=None,
        workshop__settled_at=None,
        workshop__starts_at__lte=now + SOON,
        workshop__returns_at__gt=now,
    ).exclude(workshop__approval=Approval.AWAITING)
    rows = rows.select_related(
        "user", "user", "request", "workshop__flavor", "workshop__organiser", "workshop__team"
    )
    views = seat_views(rows.order_by("workshop__starts_at", "id")[:5], now=now)
    return [view for view in views if view.state in (OPEN, AHEAD)]


def claim_seat(*, user: User, workshop: Workshop, now: datetime) -> WorkshopSeat:
    """Note that somebody has come, so that their slice starts, at its time if they are early. Safe to repeat.

    Raises NotFound without a seat, Conflict before and after the time in which one can come. Opens its own transaction.
    """
    found = WorkshopSeat.objects.filter(workshop=workshop, user=user).first()
    if found is None:
        raise NotFound
    if found.claimed_at is not None:
        return found
    if now < workshop.starts_at - EARLY:
        opens = moment(workshop.starts_at - EARLY)
        raise Conflict(_("It can be started from %(at)s on.") % {"at": opens})
    with transaction.atomic():
        seat = _claim(found.pk, now)
    if seat is None:
        raise Conflict(_("There is no slice for you here any more. Ask for GPU time, or ask the organiser."))
    return seat


def claim_at_sign_in(user: User, *, now: datetime) -> list[Workshop]:
    """Start whatever waits for somebody who has just signed in; returns the workshops they have come to."""
    rows = WorkshopSeat.objects.filter(
        user=user,
        claimed_at=None,
        returned_at=None,
        request__isnull=False,
        workshop__settled_at=None,
        workshop__starts_at__lte=now + EARLY,
        workshop__returns_at__gt=now,
    )
    came = []
    for seat in rows.select_related("workshop"):
        with transaction.atomic():
            if _claim(seat.pk, now) is not None:
                came.append(seat.workshop)
    return came


def _claim(seat_id: int, now: datetime) -> WorkshopSeat | None:
    """Claim a seat; None where there is nothing to start (any more). Locks the request, then the seat."""
    request_id = WorkshopSeat.objects.values_list("request_id", flat=True).get(pk=seat_id)
    request = LeaseRequest.objects.select_for_update().filter(pk=request_id).first()
    seat = WorkshopSeat.objects.select_for_update(of=("self",)).select_related("workshop").get(pk=seat_id)
    if seat.claimed_at is not None:
        return seat
    workshop = seat.workshop
    is_open = workshop.starts_at - EARLY <= now < workshop.returns_at
    if request is None or seat.request_id != request.pk or seat.returned_at is not None or not is_open:
        return None
    if request.state not in (RequestState.QUEUED, RequestState.GRANTED):
        return None
    request.awaits_person = False
    if request.state == RequestState.QUEUED and now > workshop.starts_at:
        # Its place was lost and it starts as soon as there is one: no longer than the others'.
        left_s = int((workshop.ends_at - now).total_seconds())
        request.remaining_s = min(request.remaining_s, max(1, left_s))
    request.save(update_fields=["awaits_person", "remaining_s"])
    seat.claimed_at = now
    seat.save(update_fields=["claimed_at"])
    record(seat.user, "workshop.came", workshop.uid, at=now, team_id=workshop.team_id)
    if request.state == RequestState.QUEUED:
        outbox.add(outbox.RUN_CYCLE, key=request.uid, at=now)
        outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return seat


def return_unclaimed(*, now: datetime) -> int:
    """Give back what nobody started in time and tell the organisers who came; returns how many slices.

    What still waited for an approval lapses. Safe to repeat and to run in parallel.
    """
    due = Workshop.objects.filter(settled_at=None, returns_at__lte=now).order_by("returns_at", "id")
    return sum(_settle(workshop, now) for workshop in due[:50])


@transaction.atomic
def _settle(workshop: Workshop, now: datetime) -> int:
    locked = lock_workshop(workshop)
    if locked.settled_at is not None:
        return 0
    locked.settled_at = now
    if locked.approval == Approval.AWAITING:
        locked.cancelled_at = now
        locked.save(update_fields=["settled_at", "cancelled_at"])
        notify([locked.organiser], "workshop.lapsed", target=locked.uid, at=now, name=locked.name)
        return 0
    locked.save(update_fields=["settled_at"])
    unclaimed = locked.seats.filter(claimed_at=None, returned_at=None)
    # Whoever comes at this very moment holds the request: once it is had here, their seat is found claimed.
    requests = {row.pk: row for row in lock_requests(unclaimed)}
    missing = list(unclaimed.select_for_update(of=("self",)).all())
    unused = [requests[seat.request_id] for seat in missing if seat.request_id in requests]
    count = give_up(unused, actor=None, now=now)
    WorkshopSeat.objects.filter(pk__in=[seat.pk for seat in missing]).update(returned_at=now)
    came = locked.seats.filter(claimed_at__isnull=False).count()
    notify(
        [locked.organiser], "workshop.settled", target=locked.uid, at=now,
        name=locked.name, came=came, missing=len(missing),
    )  # fmt: skip
    record(None, "workshop.settled", locked.uid, at=now, team_id=locked.team_id, came=came, returned=count)
    return count


def organiser_of(request: LeaseRequest) -> User | None:
    """Return who organises the workshop that a request is a seat of; None where it is none."""
    if not request.awaits_person:
        return None
    seat = WorkshopSeat.objects.filter(request=request).select_related("workshop__organiser").first()
    return seat.workshop.organiser if seat is not None else None
