"""The life of leases after they were granted: activate, release, expire, clean, fail.

Lock order everywhere: quota rows, leases by id, nodes by id last.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict
from portal.common.failpoints import failpoint
from portal.common.outbox import RUN_CYCLE, add, nudge
from portal.common.sql import fetch
from portal.fleet.services import raise_revision
from portal.leases import gangs, shared_hosts
from portal.leases.failures import public_fault
from portal.leases.hold_periods import hold_until, prolong
from portal.leases.models import Lease, LeaseRequest
from portal.leases.selectors import MAX_FAULTS, fault_count, is_anybody_waiting
from portal.leases.states import LIVE_LEASES, EndReason, LeaseState, RequestState
from portal.leases.transitions import announce, lock_leases, move_all, move_requests, step_instant
from portal.notifications.services import notify
from portal.quotas import services as quotas
from portal.teams.selectors import operators

log = logging.getLogger(__name__)
HOLD_MARGIN = timedelta(hours=1)
# Who waited less is still looking at the page, which says it by itself.
WAITED_LONG = timedelta(minutes=1)
# What a request's return to the queue is recorded with, by what ended its lease.
BACK_BECAUSE: dict[str, str] = {
    EndReason.FAULT: "the lease was lost",
    EndReason.PREEMPTED: "the lease was preempted",
    EndReason.MAINTENANCE: "the lease made way for maintenance",
}


def activate_leases(leases: Sequence[Lease], *, at: datetime) -> list[Lease]:
    """Start the money clock of locked leases that the agent reported ready; others are left alone.

    ``at`` is a database instant. The end moves so that the holder gets the whole time asked for.
    """
    ready = [lease for lease in leases if lease.state == LeaseState.PREPARING]
    by_end: dict[tuple[datetime, datetime], list[Lease]] = {}
    for lease in ready:
        begins = step_instant(lease, at=at)
        by_end.setdefault((begins, gangs.end_of(lease, at=begins)), []).append(lease)
    for (begins, until), group in by_end.items():
        move_all(group, LeaseState.ACTIVE, at=begins, stamps=["activated_at"], not_after=until)
        reached = hold_until([lease.pk for lease in group], until)
        if reached is not None and reached < until:
            _end_before_bookings(group, until)
    _end_with_the_last(ready)
    for lease in ready:
        _tell_who_waited(lease)
    return ready


def _tell_who_waited(lease: Lease) -> None:
    """Tell the holder that the first lease of a request has begun, where they may have stopped looking meanwhile."""
    asked, began = lease.request, lease.activated_at
    if lease.part or lease.is_extra or asked.is_job or asked.queued_at is None or began is None:
        return
    if began - asked.queued_at >= WAITED_LONG:
        notify([lease.user], "lease.started", target=lease.uid, at=began, opens=str(asked.opens))


def _end_with_the_last(leases: Sequence[Lease]) -> None:
    """Let the parts of a gang that became active earlier run as long as the one that was last."""
    for lease in leases:
        for early in gangs.gang_parts_of([lease]):
            if early.state != LeaseState.ACTIVE or early.not_after >= lease.not_after or early.cut_by:
                continue
            until = min(lease.not_after, hold_until([early.pk], lease.not_after) or lease.not_after)
            Lease.objects.filter(pk=early.pk).update(not_after=max(until, early.not_after))
            raise_revision([early.node_id])


def _end_before_bookings(leases: Sequence[Lease], until: datetime) -> None:
    """Let leases that were just activated end where their place is booked behind them."""
    for lease in leases:
        reached = hold_until([lease.pk], until)
        if reached is not None and reached < until:
            assert lease.activated_at is not None
            lease.not_after, lease.cut_by = max(reached, lease.activated_at + timedelta(seconds=1)), "booking"
            lease.save(update_fields=["not_after", "cut_by"])


@transaction.atomic
def release_lease(*, lease: Lease, actor: User | None, now: datetime) -> Lease:
    """End a lease early at its holder's wish: the money clock stops now, or did at its end. Safe to repeat."""
    lock_request_of_booking(lease.uid)
    (locked,) = lock_leases([lease.pk])
    release_locked(locked, actor=actor, now=now)
    return locked


def lock_request_of_booking(lease_uid: str) -> bool:
    """Lock the request of a booking; False, and no lock, where the lease is none (any more).

    Giving up a booking moves its request, which everybody locks before leases: call this before the lease is
    locked. A lease never becomes a booking later.
    """
    found = fetch(
        "SELECT 1 FROM leases_leaserequest WHERE id ="  # noqa: S608 (our own states)
        f" (SELECT request_id FROM leases_lease WHERE uid = %s AND state = '{LeaseState.BOOKED}') FOR UPDATE",
        [lease_uid],
    )
    return bool(found)


def release_locked(lease: Lease, *, actor: User | None, now: datetime) -> None:
    """End a lease that this transaction has locked, with its request at hand. Safe to repeat.

    The request of a booking must have been locked before it (``lock_request_of_booking``).
    """
    if lease.state in (LeaseState.ENDING, LeaseState.CLEANING, LeaseState.ENDED, LeaseState.FAILED):
        return
    if lease.state == LeaseState.BOOKED:
        cancel_booking(lease.request, actor=actor, at=now)
        return
    end_leases([lease], reason=EndReason.RELEASED, at=now)
    record(actor, "lease.released", lease.uid, at=now, team_id=lease.team_id)
    failpoint("release.before_commit")


def end_leases(leases: Sequence[Lease], *, reason: str, at: datetime) -> None:
    """Stop the money clock of locked live leases and tell their nodes to take the slices back.

    One whose time was up by ``at`` is over for that, at the instant it was up: however late anybody looks.
    A lease that never became active goes to cleaning and costs nothing. Slices stay held until
    the agent confirms them clean. A booking ends at once: see ``drop_booked``. The other parts of a gang,
    and what a lease has grown by, end with it.
    """
    _stop(leases, reason=reason, at=at)
    _stop_others(leases)


def _stop_others(leases: Sequence[Lease]) -> None:
    """End what lives with these leases, at the instant they ended and for the same reason."""
    ended = {lease.request_id: lease for lease in leases if lease.ended_at and not lease.is_extra}
    for lease in gangs.others_of(leases):
        first = ended.get(lease.request_id)
        if first is not None and first.ended_at is not None:
            _stop([lease], reason=first.end_reason, at=first.ended_at)


def _stop(leases: Sequence[Lease], *, reason: str, at: datetime) -> None:
    by_end: dict[tuple[datetime, str], list[Lease]] = {}
    for lease in leases:
        end = (lease.not_after, why_over(lease)) if is_over(lease, at) else (at, reason)
        by_end.setdefault(end, []).append(lease)
    touched: list[Lease] = []
    for (ended_at, why), group in by_end.items():
        active = [lease for lease in group if lease.state == LeaseState.ACTIVE]
        early = [lease for lease in group if lease.state in (LeaseState.PREPARING, LeaseState.INTERRUPTED)]
        for some, to in ((active, LeaseState.ENDING), (early, LeaseState.CLEANING)):
            touched += move_all(some, to, at=ended_at, reason=why, stamps=["ended_at"], end_reason=why)
    if touched:
        hold_until([lease.pk for lease in touched], at + HOLD_MARGIN)
        raise_revision([lease.node_id for lease in touched])


def is_over(lease: Lease, at: datetime) -> bool:
    """Say whether a lease that has begun was to end by then."""
    return lease.state in (LeaseState.ACTIVE, LeaseState.INTERRUPTED) and lease.not_after <= at


@transaction.atomic
def expire_due(*, now: datetime) -> int:
    """End active leases whose time is up, at the instant it was up. Returns how many. Safe to repeat."""
    due = (
        Lease.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("team", "request", "user", "node")
        .filter(state=LeaseState.ACTIVE, not_after__lte=now)
        .order_by("id")[:500]
    )
    leases = list(due)
    if not leases:
        return 0
    try:
        with transaction.atomic():
            end_leases(leases, reason=EndReason.EXPIRED, at=now)
        ended = len(leases)
    except IntegrityError:
        ended = sum(_expire_alone(lease.pk, now) for lease in leases)
    failpoint("expire.before_commit")
    return ended


def _expire_alone(lease_id: int, now: datetime) -> bool:
    """End one due lease; False, and told in the log, where the database refuses: it must not keep others alive."""
    try:
        with transaction.atomic():
            end_leases(lock_leases([lease_id]), reason=EndReason.EXPIRED, at=now)
        return True
    except IntegrityError:
        log.exception("lease with id %s cannot be ended; the others are", lease_id)
        return False


@transaction.atomic
def end_left_behind(*, now: datetime) -> int:
    """End parts of gangs, and what was grown, whose others have ended. Returns how many. Safe to repeat.

    Mostly they end with the others; this finds those that somebody else held just then.
    """
    found = gangs.left_behind()
    for lease, why in found:
        _stop([lease], reason=why, at=now)
    return len(found)


def why_over(lease: Lease) -> EndReason:
    """Return why a lease is over whose end has come: the time asked for is up, or maintenance was announced."""
    return EndReason.MAINTENANCE if lease.wanted_until else EndReason.EXPIRED


def clean_leases(leases: Sequence[Lease], *, at: datetime) -> list[Lease]:
    """Free what locked leases held, after the agent confirmed their slices gone.

    Call inside a transaction; quota rows are locked by ``quotas.free``. Leases still active are
    not touched. A request whose lease failed goes back to the queue with the time left.
    """
    move_all([ls for ls in leases if ls.state == LeaseState.ENDING], LeaseState.CLEANING, at=at)
    cleaned = [ls for ls in leases if ls.state == LeaseState.CLEANING]
    gone = move_all(cleaned, LeaseState.ENDED, at=at, stamps=["clean_at"])
    if not gone:
        return []
    quotas.free([(lease.team, lease.cost_milli) for lease in gone])
    at = max(at, *(lease.clean_at for lease in gone if lease.clean_at))
    _free_placements([lease.pk for lease in gone], at)
    settle_requests(gangs.outcomes(gone), at)
    transaction.on_commit(_nudge_when_somebody_waits)
    return gone


def _nudge_when_somebody_waits() -> None:
    """Offer what became free. Looked up after the commit: a request that comes later nudges by itself."""
    if is_anybody_waiting():
        nudge(RUN_CYCLE)


def _free_placements(lease_ids: Sequence[int], at: datetime) -> None:
    """Trim the periods of the leases' placements to ``at`` and empty their hosts' sums.

    A booking that had to wait for this to be clean keeps its start: the period ends there at the latest.
    """
    rows = fetch(
        "UPDATE leases_placement p SET is_live = false, period = tstzrange(lower(period),"
        " greatest(least(%s, leases_next_start(p)), lower(period) + interval '1 microsecond'))"
        " WHERE lease_id = ANY(%s) AND is_live RETURNING id, host_id",
        [at, list(lease_ids)],
    )
    shares = sorted(pk for pk, host_id in rows if host_id is not None)
    if shares:
        shared_hosts.count_out(shares, at=at)


def _forget_placements(lease_ids: Sequence[int], at: datetime) -> None:
    """Empty the periods of placements that were booked and never began: they held nothing at any time."""
    rows = fetch(
        "UPDATE leases_placement SET is_live = false, period = 'empty'"
        " WHERE lease_id = ANY(%s) AND is_live RETURNING id, host_id",
        [list(lease_ids)],
    )
    shared_hosts.settle([pk for pk, host_id in rows if host_id is not None], at=at)


def settle_requests(outcomes: Sequence[gangs.Outcome], at: datetime) -> None:
    """Move locked requests whose leases have come to an end: fulfilled, back into the queue, or given up."""
    done: list[LeaseRequest] = []
    again: list[LeaseRequest] = []
    broken: list[LeaseRequest] = []
    why: dict[int, str] = {}
    for outcome in outcomes:
        request = outcome.request
        if request.state != RequestState.GRANTED:
            continue
        is_over = request.is_job and outcome.has_run  # the job asks anew, where its own rule says so
        if outcome.end_reason not in gangs.AGAIN or is_over:
            done.append(request)
            continue
        request.remaining_s = outcome.left_s
        why[request.pk] = outcome.end_reason
        is_broken = outcome.end_reason == EndReason.FAULT and fault_count(request) >= MAX_FAULTS
        (broken if is_broken else again).append(request)
    move_requests(done, RequestState.FULFILLED, at=at)
    for request in again:
        move_requests(
            [request],
            RequestState.QUEUED,
            at=at,
            reason=BACK_BECAUSE[why[request.pk]],
            remaining_s=request.remaining_s,
            evictions=request.evictions + (why[request.pk] == EndReason.PREEMPTED),
            attempts=request.attempts + 1,  # from here on what old leases say means nothing to it
        )
    # What it waited for last is not why: without wait reasons it says that it failed.
    given_up = "it failed five times; an operator was told"
    for request in broken:
        attempts = request.attempts + 1
        move_requests(
            [request], RequestState.IMPOSSIBLE, at=at, reason=given_up, reasons=[], attempts=attempts
        )
        notify(operators(), "request.given_up", target=request.uid, at=at)


def drop_booked(leases: Sequence[Lease], *, at: datetime, reason: str) -> None:
    """End locked leases that are booked: their places are free at once, nothing was used, nothing is billed.

    Their request is left to the caller, locked as well.
    """
    stamps = ["ended_at", "clean_at"]
    gone = move_all(leases, LeaseState.ENDED, at=at, reason=reason, stamps=stamps, end_reason=reason)
    if gone:
        _forget_placements([lease.pk for lease in gone], at)


def cancel_booking(request: LeaseRequest, *, actor: User | None, at: datetime) -> None:
    """Give up a booking with all its leases, free of charge until it starts. Safe to repeat.

    Call inside a transaction with the request or one of its leases locked; a lease that has begun meanwhile
    raises Conflict.
    """
    present = Lease.objects.filter(request=request, generation=request.attempts + 1, state__in=LIVE_LEASES)
    leases = lock_leases(present.values_list("pk", flat=True))
    if any(lease.state != LeaseState.BOOKED for lease in leases):
        raise Conflict(_("This booking has begun already: release its lease instead."))
    drop_booked(leases, at=at, reason=EndReason.RELEASED)
    if leases:
        request = leases[0].request
        move_requests([request], RequestState.WITHDRAWN, at=at)
        record(actor, "booking.cancelled", request.uid, at=at, team_id=request.team_id)
        add(RUN_CYCLE, key=request.uid, at=at)
        transaction.on_commit(_nudge_when_somebody_waits)


def fail_leases(leases: Sequence[Lease], *, at: datetime, fault: str) -> None:
    """Stop locked leases that their node cannot carry; the money clock stops and the slice is cleaned.

    One whose time was up by then did not fail: it is over.
    """
    end_leases([ls for ls in leases if is_over(ls, at)], reason=EndReason.EXPIRED, at=at)
    live = [
        ls for ls in leases if ls.state in (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
    ]
    live = move_all(
        live,
        LeaseState.FAILED,
        at=at,
        reason=fault[:300],
        stamps=["ended_at"],
        end_reason=EndReason.FAULT,
        fault=fault[:300],
    )
    move_all(live, LeaseState.CLEANING, at=at)
    if live:
        hold_until([lease.pk for lease in live], at + HOLD_MARGIN)
        raise_revision([lease.node_id for lease in live])
        _stop_others(live)
    for lease in live:
        notify([lease.user], "lease.failed", target=lease.uid, at=at, fault=public_fault(fault))


@transaction.atomic
def warn_due(*, now: datetime) -> int:
    """Warn the holders of leases that end soon, once. Returns how many. Safe to repeat."""
    soon = now + timedelta(seconds=settings.LEASE_WARN_BEFORE_S)
    due = list(
        Lease.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("user", "request")
        .filter(state=LeaseState.ACTIVE, warned_at=None, not_after__lte=soon)
        .order_by("id")[:500]
    )
    # A lease shorter than the warning time would be warned about at once: nobody is helped by that.
    due = [ls for ls in due if ls.activated_at and (ls.not_after - ls.activated_at) > (soon - now)]
    if due:
        Lease.objects.filter(pk__in=[ls.pk for ls in due]).update(warned_at=now)
        announce(due, at=now)
    for lease in [ls for ls in due if ls.part == 0]:  # the others end with it: one word is enough
        notify(
            [lease.user], "lease.ends_soon", target=lease.uid, at=now, not_after=lease.not_after.isoformat()
        )
    return len(due)


@transaction.atomic
def prolong_holds(*, now: datetime) -> int:
    """Keep slices held that outlast their period because the agent has not confirmed them clean."""
    return prolong(until=now + HOLD_MARGIN, before=now + timedelta(minutes=5))


@transaction.atomic
def interrupt_lost(*, now: datetime) -> int:
    """Stop the money clock of leases whose node has been silent too long, as of its last word.

    The slice stays held: the node may still run the work. A lost lease whose time is up is cleaned
    when the agent is back. Returns how many were interrupted. Safe to repeat.
    """
    silent = now - timedelta(seconds=settings.NODE_LOST_AFTER_S)
    rows = Lease.objects.select_for_update(of=("self",), skip_locked=True).select_related(
        "team", "request", "user", "node"
    )
    unheard = list(rows.filter(state=LeaseState.ACTIVE, node__last_seen_at__lt=silent).order_by("id")[:500])
    lost = []
    for lease in unheard:
        assert lease.node.last_seen_at is not None
        if is_over(lease, lease.node.last_seen_at):
            continue  # it ran to its end; the sweep of ends says so
        heard = [lease.node.last_seen_at, lease.activated_at or lease.node.last_seen_at]
        move_all([lease], LeaseState.INTERRUPTED, at=max(heard), reason="the node has not been heard")
        notify([lease.user], "lease.interrupted", target=lease.uid, at=now, node=lease.node.name)
        lost.append(lease)
    beside = [
        ls for ls in gangs.gang_parts_of(lost) if ls.state == LeaseState.ACTIVE and not is_over(ls, now)
    ]
    move_all(beside, LeaseState.INTERRUPTED, at=now, reason="the node of another part has not been heard")
    over = list(rows.filter(state=LeaseState.INTERRUPTED, not_after__lte=now).order_by("id")[:500])
    end_leases(over, reason=EndReason.EXPIRED, at=now)
    return len(lost)


def resume_leases(leases: Sequence[Lease], *, at: datetime) -> None:
    """Start the money clock again for locked leases whose node is back and still carries them.

    A gang goes on when all its nodes are heard again. What was to end meanwhile does not go on.
    """
    over = [ls for ls in leases if ls.state == LeaseState.INTERRUPTED and is_over(ls, at)]
    end_leases(over, reason=EndReason.EXPIRED, at=at)
    ended = {ls.request_id for ls in over if not ls.is_extra}
    back = [ls for ls in leases if ls.state == LeaseState.INTERRUPTED and ls.request_id not in ended]
    parts = [ls for ls in back if ls.request.nodes != 1]
    if parts:
        silent = gangs.silent_gangs(parts, at=at)
        whole = [ls for ls in parts if ls.request_id not in silent]
        others = [ls for ls in gangs.gang_parts_of(whole) if ls.state == LeaseState.INTERRUPTED]
        # A part may end before the others; what became active past its end could never be ended any more.
        over = [ls for ls in others if is_over(ls, at)]
        end_leases(over, reason=EndReason.EXPIRED, at=at)
        stays = silent | {ls.request_id for ls in over}
        back = [ls for ls in [*back, *others] if ls.request_id not in stays]
    move_all(back, LeaseState.ACTIVE, at=at, reason="the node is back")
