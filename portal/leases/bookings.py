"""Bookings come due: they start, remind their holder, or are planned anew because something is in the way.

Lock order: requests, quota rows, leases by id, nodes last. Every sweep takes one booking per transaction, so
that one that cannot start keeps nobody else waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from portal.audit.services import record
from portal.common.errors import BudgetExceeded, QuotaExceeded
from portal.common.outbox import RUN_CYCLE, add, nudge_on_commit
from portal.common.sql import execute, fetch
from portal.fleet.maintenance import nodes_in_maintenance
from portal.fleet.pauses import PAUSED, paused_devices
from portal.fleet.selectors import blocked_why, device_blocked_why
from portal.fleet.services import raise_revision
from portal.leases import shared_hosts
from portal.leases.budget_gate import memory_short, refuse
from portal.leases.lifecycle import drop_booked
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.leases.states import EndReason, LeaseState, RequestState
from portal.leases.transitions import announce, move_all, move_requests
from portal.notifications.services import notify
from portal.quotas import services as quotas

log = logging.getLogger(__name__)
MOST_AT_ONCE = 200
# What the drivers call the slices of these leases now, where that changed since they were booked.
_NAMES_NOW = """
UPDATE leases_placement p SET profile = own->>'name'
  FROM fleet_device d, fleet_profile known, jsonb_array_elements(d.profiles) own
 WHERE p.lease_id = ANY(%s) AND p.is_live AND p.profile <> '' AND d.id = p.device_id
   AND known.device_model_id = d.model_id AND known.name = p.profile AND own->>'size' = known.size
   AND own->>'name' <> p.profile
"""
# Another lease that still holds a slot, or the host that a share goes into, of the leases given.
_STILL_HELD = """
SELECT 1 FROM leases_placement p
  JOIN leases_placement o ON o.id = coalesce(p.host_id, p.id)
  JOIN leases_placement b ON b.device_id = o.device_id AND b.is_live AND b.host_id IS NULL AND b.id <> o.id
   AND b.slots && o.slots AND lower(b.period) < lower(o.period)
 WHERE p.lease_id = ANY(%s) AND p.is_live LIMIT 1
"""
# When the node confirmed that the last of what stood in these leases' place is gone, where that is after an instant;
# in a host that is shared they take the place of whatever was inside.
_GIVEN_BACK = """
SELECT max(g.clean_at) FROM leases_lease g
 WHERE g.node_id = ANY(%s) AND g.clean_at > %s AND EXISTS (
   SELECT 1 FROM leases_placement s JOIN leases_placement was ON was.id = coalesce(s.host_id, s.id)
     JOIN leases_placement p ON p.lease_id = ANY(%s) AND p.is_live
     JOIN leases_placement o ON o.id = coalesce(p.host_id, p.id)
    WHERE s.lease_id = g.id AND was.device_id = o.device_id AND was.slots && o.slots)
"""


def start_booked(*, now: datetime) -> int:
    """Start the bookings whose time has come, and plan those anew that cannot; returns how many started.

    What is in the way (a slice that is not clean yet, a node that is away, a quota in use) is waited for
    ``BOOKING_PATIENCE_S`` after it was due, and no longer than the booking's own end; a seat in a workshop waits for
    its person. Safe to repeat and to run in parallel.
    """
    due = Lease.objects.filter(state=LeaseState.BOOKED, starts_at__lte=now, request__awaits_person=False)
    return sum(_start(request_id, now) for request_id in _requests_of(due))


@transaction.atomic
def _start(request_id: int, now: datetime) -> bool:
    request = _locked(request_id)
    leases = list(_booked(request_id=request_id)) if request else []
    if request is None or not leases:
        return False
    why = "late" if now >= leases[0].not_after else _in_the_way(leases, now)
    if not why:
        try:
            with transaction.atomic():  # what it locked is let go where it does not start
                _begin(request_id, leases, now)
            return True
        except _Busy:
            return False
        except (BudgetExceeded, QuotaExceeded, IntegrityError) as error:
            why = "held" if isinstance(error, IntegrityError) else "quota"
    patience = timedelta(seconds=settings.BOOKING_PATIENCE_S)
    # A seat of a workshop is due since its person came.
    came = fetch("SELECT claimed_at FROM leases_workshopseat WHERE request_id = %s", [request_id])
    since = max([leases[0].starts_at, *(at for (at,) in came if at is not None)])
    if now >= min(since + patience, leases[0].not_after):
        held = _lock_booked(request_id)
        if held:
            plan_anew(request, held, why=why, at=now)
    return False


class _Busy(Exception):
    """Not now: somebody else works on one of the leases, or its place came free at its very end."""


def _begin(request_id: int, seen: Sequence[Lease], now: datetime) -> None:
    """Take the quota of a locked request's bookings, then lock and start them.

    Quota rows come before leases, as on every other path: what is reserved was read without a lock, so it is
    compared with what is locked then. They begin when what stood in their place was given back, where that is
    later than ``now``: an instant that was taken before that was seen. Raises _Busy, QuotaExceeded, BudgetExceeded
    where a quota lets too little memory be held, and IntegrityError.
    """
    quotas.reserve([(lease.team, lease.cost_milli) for lease in seen])
    refuse(memory_short(seen[0].team, sum(lease.flavor.memory_mib * lease.count for lease in seen)))
    leases = _lock_booked(request_id)
    if [lease.pk for lease in leases] != [lease.pk for lease in seen]:
        raise _Busy
    ids, nodes = [lease.pk for lease in leases], [lease.node_id for lease in leases]
    ((given_back,),) = fetch(_GIVEN_BACK, [nodes, now, ids])
    at = given_back or now
    if at >= leases[0].not_after:
        raise _Busy
    move_all(leases, LeaseState.PREPARING, at=at, warned_at=None)
    # The node may have another driver by now. A lease that has begun keeps the names that its agent was told.
    execute(_NAMES_NOW, [ids])
    shares = Placement.objects.filter(lease__in=leases, is_live=True, host__isnull=False)
    shared_hosts.count_in(list(shares.values_list("pk", flat=True)))
    raise_revision(nodes)


def _locked(request_id: int) -> LeaseRequest | None:
    return (
        LeaseRequest.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("team", "author")
        .filter(pk=request_id, state=RequestState.GRANTED)
        .first()
    )


def _booked(**more: Any) -> QuerySet[Lease]:
    """Return the leases that are booked and meet these conditions, by id, with what starting one reads."""
    return (
        Lease.objects.filter(state=LeaseState.BOOKED, **more)
        .select_related("team", "request", "user", "node", "flavor")
        .order_by("pk")
    )


def _requests_of(booked: QuerySet[Lease]) -> list[int]:
    """Return the requests of these bookings in order, ``MOST_AT_ONCE`` of them."""
    ids = booked.order_by("request_id").values_list("request_id", flat=True).distinct()
    return list(ids[:MOST_AT_ONCE])


def _lock_booked(request_id: int) -> list[Lease]:
    """Return the booked leases of a locked request, locked; none where somebody else works on one."""
    found = list(_booked(request_id=request_id).select_for_update(of=("self",), skip_locked=True))
    count = Lease.objects.filter(request_id=request_id, state=LeaseState.BOOKED).count()
    return found if len(found) == count else []


def _in_the_way(leases: Sequence[Lease], now: datetime) -> str:
    """Return a stable word for what keeps the leases from starting now, "" when nothing does."""
    away = nodes_in_maintenance(now=now)
    for lease in leases:
        why = blocked_why(lease.node, now=now, away=away)
        if why:
            return why
    ids, paused = [lease.pk for lease in leases], paused_devices(now=now)
    for placement in Placement.objects.filter(lease_id__in=ids, is_live=True).select_related("device"):
        if device_blocked_why(placement.device):
            return "device"
        if placement.device_id in paused:
            return PAUSED
    return "held" if fetch(_STILL_HELD, [ids]) else ""


def plan_anew(request: LeaseRequest, leases: Sequence[Lease], *, why: str, at: datetime) -> None:
    """Give the place of a locked booking back and let the next turn find another one; its author is told why.

    A start that has passed means "as soon as possible" to the next turn, a later one stays wished for.
    """
    starts_at = leases[0].starts_at
    drop_booked(leases, at=at, reason=EndReason.REPLANNED)
    move_requests([request], RequestState.QUEUED, at=at, reason="the booking could not be kept")
    record(None, "booking.replanned", request.uid, at=at, team_id=request.team_id, why=why)
    facts: dict[str, Any] = {"why": why, "starts_at": starts_at.isoformat(), "node": leases[0].node.name}
    notify([request.author], "booking.replanned", target=request.uid, at=at, is_news=True, **facts)
    add(RUN_CYCLE, key=request.uid, at=at)
    nudge_on_commit(RUN_CYCLE)


@transaction.atomic
def replan_on(
    node_ids: Sequence[int], starts_at: datetime, ends_at: datetime, *, why: str, at: datetime
) -> int:
    """Plan those bookings anew that lie on these nodes and overlap a time; returns how many requests.

    ``MOST_AT_ONCE`` of them: the next call goes on.
    """
    there = Lease.objects.filter(
        state=LeaseState.BOOKED, node_id__in=list(node_ids), starts_at__lt=ends_at, not_after__gt=starts_at
    )
    count = 0
    for request_id in _requests_of(there):
        request = _locked(request_id)
        leases = _lock_booked(request_id) if request else []
        if request is not None and leases:
            plan_anew(request, leases, why=why, at=at)
            count += 1
    return count


@transaction.atomic
def remind_due(*, now: datetime) -> int:
    """Remind holders of bookings that begin soon, once; returns how many. Safe to repeat."""
    soon = now + timedelta(seconds=settings.BOOKING_REMIND_S)
    due = list(
        _booked(part=0, warned_at=None, starts_at__lte=soon, starts_at__gt=now).select_for_update(
            of=("self",), skip_locked=True
        )[:500]
    )
    if not due:
        return 0
    Lease.objects.filter(pk__in=[lease.pk for lease in due]).update(warned_at=now)
    for lease in due:
        at = lease.starts_at.isoformat()
        notify([lease.user], "booking.soon", target=lease.uid, at=now, starts_at=at, node=lease.node.name)
    announce(due, at=now)
    return len(due)
