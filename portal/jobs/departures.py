"""Somebody leaves: their account is closed, what waits for them is taken back, and what runs ends or runs out.

The account is closed first, in a transaction of its own: from then on nobody comes in. What they asked for follows one
by one, each as if they had taken it back themselves; whatever cuts that off, closing again goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.accounts import sessions
from portal.accounts.models import ApiToken, User
from portal.audit.services import record
from portal.common.clock import db_now
from portal.common.errors import BerthError, Conflict, Forbidden, NotFound
from portal.common.retry import with_retries
from portal.jobs.models import Job
from portal.jobs.services import cancel_job
from portal.jobs.states import OPEN_JOBS, JobState
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease, LeaseRequest, Reservation
from portal.leases.requests import withdraw_request
from portal.leases.reservations import cancel_reservation
from portal.leases.states import LeaseState, RequestState
from portal.teams.selectors import Rights

RUNNING: Final = (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
_WAITING: Final = (RequestState.AWAITING_APPROVAL, RequestState.QUEUED)


@dataclass(frozen=True, slots=True)
class OpenWork:
    """What somebody has asked for and not got yet, and what runs for them. Bookings to come wait."""

    series: int
    requests: int
    jobs: int
    leases: int

    @property
    def waits(self) -> int:
        """Return how much of it has not begun."""
        return self.series + self.requests + self.jobs


def people(*, rights: Rights, text: str = "", is_closed: bool | None = None) -> QuerySet[User]:
    """Return the accounts of the installation, by some letters of a name or an address; raises Forbidden."""
    _require_operator(rights)
    rows = User.objects.all()
    if text:
        named = ("username", "display_name", "email")
        rows = rows.filter(Q(*((f"{name}__icontains", text) for name in named), _connector=Q.OR))
    return rows if is_closed is None else rows.filter(is_active=not is_closed)


def open_work(user: User) -> OpenWork:
    """Return what would end if somebody's account were closed."""
    series, requests, jobs, leases = _of(user)
    return OpenWork(
        series.count(), requests.count(), jobs.filter(state=JobState.WAITING).count(), leases.count()
    )


def close_account(
    username: str, *, actor: User, rights: Rights, ends_leases: bool, now: datetime | None = None
) -> OpenWork:
    """Close somebody's account and take back what waits for them; returns what that was. Safe to repeat.

    Sessions, tokens and live sockets end at once. ``ends_leases``: what runs for them ends now, else it goes on.
    Roles stay as they are, so that whoever comes back has them. Raises Forbidden, NotFound, and Conflict for one's own.
    Opens transactions of its own.
    """
    _require_operator(rights)
    user = with_retries(lambda: _close(username, actor, now or db_now()))
    before = open_work(user)
    series, requests, jobs, leases = _of(user)
    steps: list[tuple[Iterable[Any], Callable[[Any, datetime], object]]] = [
        (series, lambda one, at: cancel_reservation(series=one, actor=actor, rights=rights, now=at)),
        (
            jobs if ends_leases else jobs.filter(state=JobState.WAITING),
            lambda one, at: cancel_job(job=one, actor=actor, rights=rights, now=at),
        ),
        (requests, lambda one, at: withdraw_request(request=one, actor=actor, rights=rights, now=at)),
    ]
    if ends_leases:
        steps.append((leases, lambda one, at: release_lease(lease=one, actor=actor, now=at)))
    for rows, end in steps:
        for one in list(rows):
            _end_one(lambda one=one, end=end: end(one, now or db_now()))  # type: ignore[misc]
    return before


@transaction.atomic
def reopen_account(username: str, *, actor: User, rights: Rights, now: datetime) -> User:
    """Let somebody in again, with the roles they still have. Tokens stay revoked. Safe to repeat.

    Raises Forbidden and NotFound.
    """
    _require_operator(rights)
    user = _locked(username)
    if not user.is_active:
        user.is_active, user.closed_at = True, None
        user.save(update_fields=["is_active", "closed_at"])
        record(actor, "account.reopened", user.username, at=now)
    return user


@transaction.atomic
def _close(username: str, actor: User, now: datetime) -> User:
    # Both rows: of two operators who close each other's account one is too late, and somebody can still come in.
    both = User.objects.select_for_update(no_key=True).filter(Q(username=username) | Q(pk=actor.pk))
    held = {one.pk: one for one in both.order_by("pk")}
    user = next((one for one in held.values() if one.username == username), None)
    if user is None:
        raise NotFound
    if not held[actor.pk].is_active:
        raise Forbidden(_("Only operators see who has an account, and close them."))
    if user.pk == actor.pk:
        raise Conflict(_("You cannot close your own account. Ask another operator."))
    if user.is_active:
        user.is_active, user.closed_at = False, now
        user.save(update_fields=["is_active", "closed_at"])
        ended = sessions.end_sessions(user, now=now)
        revoked = ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=now)
        record(actor, "account.closed", user.username, at=now, sessions=len(ended), tokens=revoked)
    return user


def _of(user: User) -> tuple[QuerySet[Reservation], QuerySet[LeaseRequest], QuerySet[Job], QuerySet[Lease]]:
    """Return a person's series, requests that wait or are booked, jobs, and leases that run."""
    requests = LeaseRequest.objects.filter(author=user, is_job=False).filter(
        Q(state__in=_WAITING) | Q(state=RequestState.GRANTED, leases__state=LeaseState.BOOKED)
    )
    return (
        Reservation.objects.filter(author=user, cancelled_at=None).order_by("pk"),
        requests.distinct().order_by("pk"),
        Job.objects.filter(user=user, state__in=OPEN_JOBS).select_related("team", "request").order_by("pk"),
        Lease.objects.filter(user=user, state__in=RUNNING).select_related("request").order_by("pk"),
    )


def _end_one(end: Callable[[], object]) -> None:
    """End one thing; what has ended or begun meanwhile is no error."""
    try:
        with_retries(end)
    except BerthError:
        return


def _locked(username: str) -> User:
    user = User.objects.select_for_update().filter(username=username).first()
    if user is None:
        raise NotFound
    return user


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators see who has an account, and close them."))
