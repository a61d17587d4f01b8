"""What happened to a request and its leases, and what comes next, as one line of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop

from portal.accounts.models import User
from portal.common.moments import span
from portal.leases.approvals import NOBODY_DECIDED
from portal.leases.failures import failure_text
from portal.leases.models import ApprovalStep, Lease, LeaseEvent, LeaseRequest, RequestEvent
from portal.leases.states import EndReason, LeaseState, RequestState

R, L = RequestState, LeaseState


@dataclass(frozen=True)
class TimelineStep:
    """One step; ``todo`` has not happened yet and ``at`` may then be unknown."""

    title: str
    at: datetime | None = None
    text: str = ""
    actor: str = ""
    icon: str = "check"
    tone: str = "quiet"
    todo: bool = False


REQUEST_STEPS: dict[str, tuple[Any, str, str]] = {
    R.SUBMITTED: (gettext_lazy("Asked"), "send", "info"),
    R.AWAITING_APPROVAL: (gettext_lazy("Waits for approval"), "clock-pause", "warn"),
    R.QUEUED: (gettext_lazy("In the queue"), "hourglass", "info"),
    R.GRANTED: (gettext_lazy("Granted"), "circle-check", "good"),
    R.FULFILLED: (gettext_lazy("Done"), "check", "quiet"),
    R.REJECTED: (gettext_lazy("Rejected"), "circle-x", "bad"),
    R.WITHDRAWN: (gettext_lazy("Withdrawn"), "arrow-back-up", "quiet"),
    R.EXPIRED: (gettext_lazy("Expired"), "clock", "quiet"),
    R.IMPOSSIBLE: (gettext_lazy("Cannot be served"), "ban", "bad"),
}
LEASE_STEPS: dict[str, tuple[Any, str, str]] = {
    L.BOOKED: (gettext_lazy("Booked"), "calendar", "info"),
    L.PREPARING: (gettext_lazy("The node makes the slice"), "loader-2", "info"),
    L.ACTIVE: (gettext_lazy("Active: the clock runs"), "activity", "good"),
    L.INTERRUPTED: (gettext_lazy("Interrupted: the clock stands still"), "plug-connected", "warn"),
    L.ENDING: (gettext_lazy("Ended: the clock stopped"), "player-stop", "warn"),
    L.FAILED: (gettext_lazy("Failed: the clock stopped"), "circle-x", "bad"),
    L.CLEANING: (gettext_lazy("The slice is cleaned"), "wash", "quiet"),
    L.ENDED: (gettext_lazy("Clean and free for the next"), "check", "quiet"),
}
# Events of one instant in the order they follow from each other.
ORDER = (R.SUBMITTED, R.AWAITING_APPROVAL, R.QUEUED, *LEASE_STEPS)
# What the lifecycle writes as a reason, so that it can be said in the reader's language.
KNOWN_REASONS = (
    gettext_noop("the node has not been heard"),
    gettext_noop("the node of another part has not been heard"),
    gettext_noop("the node is back"),
    gettext_noop("the lease was lost"),
    gettext_noop("the lease was preempted"),
    gettext_noop("the lease made way for maintenance"),
    gettext_noop("the booking could not be kept"),
    gettext_noop("it failed five times; an operator was told"),
    NOBODY_DECIDED,
)
# A lease's own "granted" says the same as the request's; one of them is enough.
SAID_BY_LEASE = {R.GRANTED, R.FULFILLED}


def request_steps(
    request: LeaseRequest, leases: Sequence[Lease], *, starts_at: datetime | None
) -> list[TimelineStep]:
    """Return the whole story of a request: its own events, those of its leases, and what is to come."""
    moments: list[tuple[datetime, int, TimelineStep]] = [
        (event.at, _rank(event), _request_step(event, request))
        for event in RequestEvent.objects.filter(request=request)
        if event.now not in SAID_BY_LEASE
    ]
    # The last approval is the step into the queue; what it let through where that was less is said here.
    moments += [
        (step.at, ORDER.index(R.AWAITING_APPROVAL), _approval_step(step))
        for step in ApprovalStep.objects.filter(request=request).select_related("approver", "on_behalf_of")
        if step.is_less or step.at != request.decided_at
    ]
    # Of several leases each step says which it is of.
    names = {lease.pk: _which(lease) for lease in leases} if len(leases) > 1 else {}
    moments += [
        (event.at, _rank(event), _lease_step(event, names.get(event.lease_id, "")))
        for event in LeaseEvent.objects.filter(lease__in=[lease.pk for lease in leases])
    ]
    past = [step for _when, _place, step in sorted(moments, key=lambda m: m[:2])]
    live = next((lease for lease in leases if lease.state != L.ENDED), None)
    return [*past, *(lease_ahead(live) if live else request_ahead(request, starts_at))]


def request_ahead(request: LeaseRequest, starts_at: datetime | None) -> list[TimelineStep]:
    """Return the steps a request still has before it."""
    if request.state not in (R.QUEUED, R.AWAITING_APPROVAL):
        return []
    ends_at = starts_at + timedelta(seconds=request.remaining_s) if starts_at else None
    start = _("expected") if starts_at else _("not known yet")
    ahead = [
        TimelineStep(_("Starts"), starts_at, start, icon="player-play", todo=True),
        TimelineStep(_("Ends, and the receipt is ready"), ends_at, icon="receipt", todo=True),
    ]
    if request.state == R.AWAITING_APPROVAL:
        return [TimelineStep(_("Somebody decides"), icon="checkbox", todo=True), *ahead]
    return ahead


def lease_ahead(lease: Lease) -> list[TimelineStep]:
    """Return the steps a live lease still has before it."""
    clean = TimelineStep(_("Cleaned; the receipt is ready"), icon="receipt", todo=True)
    if lease.state == L.BOOKED:
        return [
            TimelineStep(
                _("Begins, and the node makes the slice"), lease.starts_at, icon="calendar", todo=True
            ),
            clean,
        ]
    if lease.state == L.PREPARING:
        return [TimelineStep(_("Active: the clock starts"), icon="activity", todo=True), clean]
    if lease.state in (L.ACTIVE, L.INTERRUPTED):
        return [
            TimelineStep(
                _ahead_text(lease),
                lease.ends_at,
                icon="hourglass",
                todo=True,
            ),
            clean,
        ]
    return [clean]


def _ahead_text(lease: Lease) -> str:
    """Return how a running lease will end as things stand."""
    if lease.preempt_at is None:
        return _("Ends by itself")
    return _("Taken back, because it idles") if lease.must_go_for == "idle" else _("Must make room")


def _rank(event: RequestEvent | LeaseEvent) -> int:
    """Return where an event stands among those of its instant; back to the queue comes after its lease."""
    is_back = event.was == R.GRANTED and event.now == R.QUEUED
    return len(ORDER) if is_back or event.now not in ORDER else ORDER.index(event.now)


def _request_step(event: RequestEvent, request: LeaseRequest) -> TimelineStep:
    title, icon, tone = REQUEST_STEPS.get(event.now, (event.now, "circle-dashed", "quiet"))
    actor = ""
    if request.decided_by and event.at == request.decided_at:
        actor = _("by %(who)s") % {"who": decider_text(request.decided_by, request.decided_for)}
        if event.now == R.QUEUED:
            title = _("Approved, in the queue")
    elif event.now == R.SUBMITTED:
        actor = _("by %(who)s") % {"who": request.author}
    return TimelineStep(str(title), event.at, _reason(event.reason), actor, icon, tone)


def decider_text(actor: User, decided_for: User | None) -> str:
    """Return who decided, and in whose place."""
    if decided_for is None:
        return str(actor)
    return _("%(who)s for %(whom)s") % {"who": actor, "whom": decided_for}


def step_text(step: ApprovalStep) -> str:
    """Return who approved, and what of it where it was less than asked for."""
    facts = {
        "who": decider_text(step.approver, step.on_behalf_of),
        "n": step.count,
        "time": span(step.duration_s),
    }
    if step.is_less:
        return _("%(who)s approved %(n)d for %(time)s") % facts
    return _("%(who)s approved it as it is") % facts


def _approval_step(step: ApprovalStep) -> TimelineStep:
    return TimelineStep(_("Approved"), step.at, step_text(step), icon="check")


def _lease_step(event: LeaseEvent, which: str = "") -> TimelineStep:
    title, icon, tone = LEASE_STEPS.get(event.now, (event.now, "circle-dashed", "quiet"))
    return TimelineStep(str(title), event.at, why_text(event), which, icon=icon, tone=tone)


def why_text(event: LeaseEvent) -> str:
    """Return why a lease took a step, in the reader's language; "" where that needs no word."""
    return failure_text(event.reason) if event.now == L.FAILED else _reason(event.reason)


def _which(lease: Lease) -> str:
    """Return a lease by its node, and by what it is to its request where that says more."""
    return f"{lease.node.name} · {_('grown')}" if lease.is_extra else lease.node.name


def _reason(reason: str) -> str:
    """Return a stored reason in the reader's language where it is one of ours."""
    if reason in EndReason.values:
        return str(EndReason(reason).label) if reason else ""
    return _(reason) if reason in KNOWN_REASONS else reason
