"""Reservations: bookings that come again. Each time becomes a request of its own, which the next turn books.

A clash stops nothing but the one time it hits: its author is told, the others stand.

What a series holds is judged as the whole: all of its times in the first four weeks, as many as are asked for ahead,
against the team's threshold. Above it the series waits for an approver before anything is asked for; the times of an
approved one need no approval of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import F, Q
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid, NotFound, TooManyWaiting
from portal.common.retry import with_retries
from portal.common.zones import zone_names
from portal.leases.approvers import absent, approvers, audited, said_by
from portal.leases.lifecycle import cancel_booking
from portal.leases.models import LeaseRequest, Reservation
from portal.leases.requests import (
    RequestSpec,
    check_may_ask,
    check_possible,
    check_spec,
    needs_approval,
    submit_request,
)
from portal.leases.selectors import is_booked, visible_series
from portal.leases.states import Approval, Repeat, RequestState
from portal.leases.transitions import move_requests
from portal.notifications.services import notify
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

log = logging.getLogger(__name__)
AHEAD = timedelta(days=28)
FURTHEST = timedelta(days=366)
MOST_SERIES = 100
DAY = timedelta(days=1)
STEPS = {Repeat.DAILY: DAY, Repeat.WEEKDAYS: DAY, Repeat.WEEKLY: 7 * DAY}


@dataclass(frozen=True, slots=True)
class SeriesSpec:
    """What comes again: a request's flavor, count and time, from ``starts_at`` on until ``until`` (None: no end).

    ``zone`` names the time zone in which the hour stays the same.
    """

    flavor: str
    duration_s: int
    starts_at: datetime
    repeat: str = "weekly"
    until: datetime | None = None
    zone: str = "UTC"
    count: int = 1
    name: str = ""
    purpose: str = ""


def occurrences(
    starts_at: datetime, repeat: str, zone: str, *, after: datetime, until: datetime
) -> Iterator[datetime]:
    """Yield the instants of a series in (``after``, ``until``], in order, in UTC.

    The local hour stays the same when clocks change. An hour that clocks skip moves on by what they skip; of
    an hour that comes twice it is the first.
    """
    local = starts_at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    step = STEPS[Repeat(repeat)]
    skipped = max(0, (after - starts_at) // step - 1) if after > starts_at else 0
    wall = local + skipped * step
    while True:
        at = wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        if at > until:
            return
        if at > after and not (repeat == Repeat.WEEKDAYS and wall.weekday() >= 5):
            yield at
        wall += step


def check_series(spec: SeriesSpec, *, now: datetime) -> None:
    """Raise Invalid naming every field of a series that cannot be used; what a request checks is left to it."""
    fields: dict[str, str] = {}
    if spec.repeat not in Repeat.values:
        fields["repeat"] = _("Choose daily, weekdays or weekly.")
    elif spec.duration_s > STEPS[Repeat(spec.repeat)].total_seconds():
        fields["duration_s"] = _("It would still run when it comes again. Choose a shorter time.")
    if spec.zone not in zone_names():
        fields["zone"] = _("There is no such time zone. Write a name such as Europe/Berlin.")
    if not now < spec.starts_at <= now + FURTHEST:
        fields["starts_at"] = _("The first time lies in the future, within a year.")
    if spec.until is not None and not spec.starts_at <= spec.until <= now + 2 * FURTHEST:
        fields["until"] = _("The last day is not before the first time, and within two years.")
    if fields:
        raise Invalid(fields=fields)


def spec_of_series(series: Reservation) -> SeriesSpec:
    """Return what a series asks for."""
    return SeriesSpec(
        flavor=series.flavor.slug,
        duration_s=series.duration_s,
        starts_at=series.starts_at,
        repeat=series.repeat,
        until=series.until,
        zone=series.zone,
        count=series.count,
        name=series.name,
        purpose=series.purpose,
    )


def held_s(spec: SeriesSpec) -> int:
    """Return for how many seconds a checked series holds what it asks for, over all its times of four weeks."""
    upto = min(spec.until or spec.starts_at + AHEAD, spec.starts_at + AHEAD - timedelta(seconds=1))
    before = spec.starts_at - timedelta(seconds=1)
    times = occurrences(spec.starts_at, spec.repeat, spec.zone, after=before, until=upto)
    return spec.duration_s * sum(1 for _at in times)


def create_reservation(
    *, team: Team, actor: User, rights: Rights, spec: SeriesSpec, now: datetime
) -> Reservation:
    """Store a series and ask for its first times, or raise with what to change.

    Where all its times together are more than the team may have without approval it only waits for an approver.
    Invalid, Impossible, Forbidden and NotFound change nothing. Opens its own transactions.
    """
    check_may_ask(rights, team, "normal")
    check_series(spec, now=now)
    flavor = check_spec(team, _one(spec), now=now)
    check_possible(team, flavor, spec.count)
    if Reservation.objects.filter(author=actor, cancelled_at=None).count() >= MOST_SERIES:
        raise Conflict(_("You have %(n)d reservations already; cancel one first.") % {"n": MOST_SERIES})
    is_large = needs_approval(team, flavor, count=spec.count, duration_s=held_s(spec))
    with transaction.atomic():
        made = Reservation.objects.create(
            team=team,
            author=actor,
            flavor=flavor,
            count=spec.count,
            duration_s=spec.duration_s,
            name=spec.name.strip(),
            purpose=spec.purpose.strip(),
            starts_at=spec.starts_at,
            repeat=spec.repeat,
            until=spec.until,
            zone=spec.zone,
            approval=Approval.AWAITING if is_large else Approval.NOT_NEEDED,
            created_at=now,
        )
        record(actor, "reservation.made", made.uid, at=now, team_id=team.pk, repeat=spec.repeat)
        if is_large:
            others = approvers(team, besides=[actor.pk])
            notify(others, "reservation.awaits_approval", target=made.uid, at=now, by=str(actor))
            return made
    with_retries(lambda: _make(made.pk, now))
    made.refresh_from_db()
    return made


def approve_reservation(
    *, series: Reservation, actor: User, rights: Rights, note: str, now: datetime
) -> Reservation:
    """Let a series that waits be asked for, time by time; its author may never decide it.

    Opens its own transactions.
    """
    with transaction.atomic():
        locked = _decide(series, Approval.APPROVED, actor, rights, note, now)
        record(
            actor, "reservation.approved", locked.uid, at=now, team_id=locked.team_id, **audited(locked.decided_for)
        )  # fmt: skip
        told: dict[str, Any] = said_by(actor, locked.decided_for)
        notify([locked.author], "reservation.approved", target=locked.uid, at=now, **told)
    with_retries(lambda: _make(locked.pk, now))
    locked.refresh_from_db()
    return locked


@transaction.atomic
def reject_reservation(
    *, series: Reservation, actor: User, rights: Rights, note: str, now: datetime
) -> Reservation:
    """Turn a series down with a reason that its author will read; it ends without having asked for anything."""
    if not note.strip():
        raise Invalid(fields={"note": _("Say why, so that the person knows what to change.")})
    locked = _decide(series, Approval.REJECTED, actor, rights, note, now)
    record(
        actor, "reservation.rejected", locked.uid, at=now, team_id=locked.team_id, **audited(locked.decided_for)
    )  # fmt: skip
    told: dict[str, Any] = {**said_by(actor, locked.decided_for), "note": note[:300]}
    notify([locked.author], "reservation.rejected", target=locked.uid, at=now, **told)
    return locked


def _decide(
    series: Reservation, approval: str, actor: User, rights: Rights, note: str, now: datetime
) -> Reservation:
    """Write a decision on a series that waits, or raise Forbidden, NotFound or Conflict."""
    seats = rights.require_seats(series.team, series.author_id)
    if not seats:
        raise Forbidden(_("Nobody decides on a reservation of their own."))
    locked = Reservation.objects.select_for_update(of=("self",)).select_related("author").get(pk=series.pk)
    if locked.approval != Approval.AWAITING or locked.cancelled_at is not None:
        raise Conflict(_("This reservation does not wait for approval any more."))
    locked.approval, locked.decided_by, locked.decided_at = approval, actor, now
    locked.decided_for = absent(seats[0])
    locked.decision_note = note[:300]
    if approval == Approval.REJECTED:
        locked.cancelled_at = now
    locked.save(
        update_fields=["approval", "decided_by", "decided_for", "decided_at", "decision_note", "cancelled_at"]
    )
    return locked


def _one(spec: SeriesSpec) -> RequestSpec:
    """Return a single time of a series as a request, without its start, which is checked for the series."""
    return RequestSpec(
        flavor=spec.flavor, duration_s=spec.duration_s, count=spec.count, name=spec.name, purpose=spec.purpose
    )


def make_occurrences(*, now: datetime) -> int:
    """Ask for the times of every series in the next four weeks; returns how many requests. Safe to repeat.

    A series that fails unexpectedly changes nothing and is tried again by the next sweep; the others go on.
    """
    due = (
        Reservation.objects.filter(cancelled_at=None)
        .exclude(approval=Approval.AWAITING)
        .filter(Q(made_until=None) | Q(made_until__lt=now + AHEAD - timedelta(hours=1)))
    )
    due = due.filter(Q(until=None) | Q(made_until=None) | Q(made_until__lt=F("until")))
    return sum(_make_or_log(pk, now) for pk in due.order_by("id").values_list("pk", flat=True)[:500])


def _make_or_log(reservation_id: int, now: datetime) -> int:
    """Ask for the times of one series; whatever is wrong with it is logged and is nobody else's matter."""
    try:
        return with_retries(lambda: _make(reservation_id, now))
    except Exception:
        log.exception("reservation %d could not be carried on; the next sweep tries again", reservation_id)
        return 0


@transaction.atomic
def _make(reservation_id: int, now: datetime) -> int:
    """Ask for the times of one series that are due; another sweep that holds it leaves nothing to do."""
    series = (
        Reservation.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("team", "author", "flavor")
        .filter(pk=reservation_id, cancelled_at=None)
        .exclude(approval=Approval.AWAITING)
        .first()
    )
    if series is None:
        return 0
    upto = min(series.until or now + AHEAD, now + AHEAD)
    after = max(series.made_until or series.starts_at - timedelta(seconds=1), now)
    made = 0
    for at in occurrences(series.starts_at, series.repeat, series.zone, after=after, until=upto):
        try:
            made += _ask(series, at, now)
        except TooManyWaiting:
            upto = at - timedelta(seconds=1)  # the queue is full: the next sweep goes on here
            break
        except (NotFound, Forbidden):
            _stop(series, now)
            return made
        except BerthError as error:
            _tell(series, at, error, now)
    series.made_until = upto
    series.save(update_fields=["made_until"])
    return made


def _ask(series: Reservation, at: datetime, now: datetime) -> int:
    """Ask for one time of a locked series; 0 when that was done before."""
    if LeaseRequest.objects.filter(series=series, starts_at=at).exists():
        return 0
    spec = RequestSpec(
        flavor=series.flavor.slug,
        duration_s=series.duration_s,
        count=series.count,
        name=series.name,
        purpose=series.purpose,
        starts_at=at,
    )
    with transaction.atomic():
        request = submit_request(
            team=series.team,
            actor=series.author,
            rights=Rights(series.author),
            spec=spec,
            now=now,
            is_approved=series.approval == Approval.APPROVED,
        )
        LeaseRequest.objects.filter(pk=request.pk).update(series=series)
    return 1


def _tell(series: Reservation, at: datetime, error: BerthError, now: datetime) -> None:
    """Tell the author that one time of the series could not even be asked for."""
    said = (
        " ".join(str(text) for text in error.fields.values())
        if isinstance(error, Invalid)
        else str(error.detail)
    )
    log.info("reservation %s cannot be asked for at %s: %s", series.uid, at, said)
    when = at.isoformat()
    notify(
        [series.author],
        "reservation.missed",
        target=series.uid,
        at=now,
        is_news=True,
        starts_at=when,
        why=said[:300],
    )


def _stop(series: Reservation, now: datetime) -> None:
    """End a locked series whose author may not ask for the team any more."""
    series.cancelled_at = now
    series.save(update_fields=["cancelled_at"])
    record(None, "reservation.ended", series.uid, at=now, team_id=series.team_id)
    notify([series.author], "reservation.ended", target=series.uid, at=now)


@transaction.atomic
def cancel_reservation(*, series: Reservation, actor: User, rights: Rights, now: datetime) -> int:
    """End a series and give up what it has asked for and booked; what runs goes on. Returns how many times.

    Raises NotFound or Forbidden as for a request. Safe to repeat.
    """
    if not may_manage_series(rights, series):
        raise Forbidden if rights.has(series.team, *Role.values) else NotFound
    locked = Reservation.objects.select_for_update().get(pk=series.pk)
    if locked.cancelled_at is None:
        locked.cancelled_at = now
        locked.save(update_fields=["cancelled_at"])
        record(actor, "reservation.cancelled", locked.uid, at=now, team_id=locked.team_id)
    open_states = (RequestState.QUEUED, RequestState.AWAITING_APPROVAL, RequestState.GRANTED)
    ahead = LeaseRequest.objects.select_for_update(of=("self",)).filter(series=locked, state__in=open_states)
    return sum(_give_up(request, actor, now) for request in ahead.order_by("id"))


def _give_up(request: LeaseRequest, actor: User, now: datetime) -> bool:
    if request.state != RequestState.GRANTED:
        move_requests([request], RequestState.WITHDRAWN, at=now)
        return True
    if not is_booked(request):
        return False
    cancel_booking(request, actor=actor, at=now)
    return True


def may_manage_series(rights: Rights, series: Reservation) -> bool:
    """Say whether this person may cancel the series: its author, a team admin, an operator."""
    return series.author_id == rights.user.pk or rights.has(series.team, Role.ADMIN, Role.OPERATOR)


def series_named(rights: Rights, uid: str) -> Reservation:
    """Return a series by its name, or raise NotFound also when it is out of sight."""
    found = visible_series(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found


def times_of(series: Reservation, *, now: datetime) -> list[LeaseRequest]:
    """Return the times of a series from now on that were asked for, the next first, with what became of them."""
    wanted = LeaseRequest.objects.filter(
        series=series, starts_at__gt=now - timedelta(seconds=series.duration_s)
    )
    return list(wanted.order_by("starts_at").prefetch_related("leases"))
