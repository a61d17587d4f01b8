"""Rows from before the database refused them: steps of leases that run backwards, and ends after the end.

What is written is what the steps must have been: each no earlier than the one before it, none up to the end later
than the end. Usage in open months is metered anew from them. Closed months never change; a lease that reaches into
one is left as it is, and noted, so that ``check_invariants`` knows it for what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection, transaction

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, PeriodState, UsageRecord
from portal.billing.settlement import amend_settlements
from portal.common.retry import with_retries
from portal.common.sql import execute, fetch
from portal.leases.models import Lease, LeaseEvent
from portal.leases.states import LeaseState

STAYS: Final = "lease.events_stay"
REPAIRED: Final = "lease.events_repaired"
_FAULTY = f"""
SELECT l.id FROM leases_lease l WHERE NOT EXISTS (
  SELECT 1 FROM audit_auditentry a WHERE a.target = l.uid AND a.action = %s)
 AND (l.ended_at > l.not_after OR l.clean_at < l.ended_at
  OR EXISTS (SELECT 1 FROM leases_leaseevent e WHERE e.lease_id = l.id
    AND e.was = '{LeaseState.ACTIVE}' AND e.at > l.not_after)
  OR EXISTS (SELECT 1 FROM leases_leaseevent e JOIN leases_leaseevent f ON f.lease_id = e.lease_id
   AND f.id > e.id AND f.at < e.at WHERE e.lease_id = l.id))
 ORDER BY l.id
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class StepChange:
    """One step that is recorded at another instant than it should be."""

    event_id: int
    step: str
    was_at: datetime
    at: datetime


@dataclass(frozen=True, slots=True)
class EventRepair:
    """What is wrong with a lease and what becomes of it; ``is_closed``: a closed month keeps it as it is."""

    lease: Lease
    changes: tuple[StepChange, ...]
    ended_at: datetime | None
    clean_at: datetime | None
    is_closed: bool


def repair_all(*, is_written: bool, actor: User | None, now: datetime) -> list[EventRepair]:
    """Return what is wrong with leases of old and, if told so, mend it; the meter follows. Safe to repeat.

    Leases that somebody works on just then are left for the next time. Call outside a transaction.
    """
    found = with_retries(lambda: _repair(is_written=is_written, actor=actor, now=now))
    if is_written and found:
        meter_all(now=now)
        with_retries(lambda: amend_settlements([repair.lease.pk for repair in found], now=now))
    return found


@transaction.atomic
def _repair(*, is_written: bool, actor: User | None, now: datetime) -> list[EventRepair]:
    if is_written:  # the table before the leases: whoever has one of these may be about to record a step
        _let_rewrite(True)
    leases = Lease.objects.select_for_update(skip_locked=True).filter(
        pk__in=[pk for (pk,) in fetch(_FAULTY, [STAYS])]
    )
    found = [_plan(lease) for lease in leases.order_by("id")]
    if is_written:
        for repair in found:
            _write(repair, actor=actor, now=now)
        _let_rewrite(False)
    return found


def _let_rewrite(is_let: bool) -> None:
    """Take away, or set again, the guard that keeps steps from being rewritten, for this transaction alone."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET CONSTRAINTS ALL IMMEDIATE"
        )  # nothing deferred may be pending when a table changes
        word = "DISABLE" if is_let else "ENABLE"
        cursor.execute(f"ALTER TABLE leases_leaseevent {word} TRIGGER leases_leaseevent_append_only")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


def _plan(lease: Lease) -> EventRepair:
    """Return what a lease's steps should be: in order, and up to its end no later than that."""
    events = list(LeaseEvent.objects.filter(lease=lease).order_by("id"))
    end = next((number for number, event in enumerate(events) if _is_end(event)), None)
    instants: list[datetime] = []
    for number, event in enumerate(events):
        is_bound = event.was == LeaseState.ACTIVE or (end is not None and number <= end)
        at = min(event.at, lease.not_after) if is_bound else event.at
        instants.append(max(at, *instants[-1:]) if instants else at)
    changes = tuple(
        StepChange(event.pk, event.now, event.at, at)
        for event, at in zip(events, instants, strict=True)
        if event.at != at
    )
    ended_at = lease.ended_at if end is None else instants[end]
    clean_at = instants[-1] if lease.state == LeaseState.ENDED and instants else lease.clean_at
    touched = [at for change in changes for at in (change.was_at, change.at)]
    touched += [
        at
        for was, now in ((lease.ended_at, ended_at), (lease.clean_at, clean_at))
        for at in (was, now)
        if was != now and at is not None
    ]
    is_closed = bool(touched) and (
        BillingPeriod.objects.filter(
            state=PeriodState.CLOSED, starts_at__lte=max(touched), ends_at__gt=min(touched)
        ).exists()
    )
    return EventRepair(lease, changes, ended_at, clean_at, is_closed)


def _is_end(event: LeaseEvent) -> bool:
    """Say whether this step ended the lease: the money clock stopped for good, or never began."""
    return (
        event.now in (LeaseState.ENDING, LeaseState.FAILED)
        or (event.now == LeaseState.CLEANING and event.was in (LeaseState.PREPARING, LeaseState.INTERRUPTED))
        or (event.now == LeaseState.ENDED and event.was == LeaseState.BOOKED)
    )


def _write(repair: EventRepair, *, actor: User | None, now: datetime) -> None:
    lease = repair.lease
    facts = [
        {"step": change.step, "was": change.was_at.isoformat(), "now": change.at.isoformat()}
        for change in repair.changes
    ]
    if repair.is_closed:
        record(actor, STAYS, lease.uid, at=now, team_id=lease.team_id, steps=facts)
        return
    for change in repair.changes:
        execute("UPDATE leases_leaseevent SET at = %s WHERE id = %s", [change.at, change.event_id])
    UsageRecord.objects.filter(lease=lease).exclude(period__state=PeriodState.CLOSED).delete()
    lease.ended_at, lease.clean_at, lease.is_metered = repair.ended_at, repair.clean_at, False
    last = LeaseEvent.objects.filter(lease=lease).latest("id")
    lease.moved_at = last.at
    lease.save(update_fields=["ended_at", "clean_at", "moved_at", "is_metered"])
    record(actor, REPAIRED, lease.uid, at=now, team_id=lease.team_id, steps=facts)
