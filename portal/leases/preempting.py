"""Leases that must go for a waiting request: told with a time, spared when nobody needs them to, ended when it is up.

A told lease runs on until ``preempt_at``, by its node's clock too; its ``not_after`` stays what it was, so that
sparing it takes nothing back (docs/preemption.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from portal.audit.services import record
from portal.common.sql import fetch, in_sql
from portal.fleet.services import raise_revision
from portal.leases.lifecycle import end_leases
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import WANTED_ON_NODE, EndReason, LeaseState, RequestState
from portal.leases.transitions import announce, lock_leases
from portal.notifications.services import notify

TOLD = (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
MOST = 500


@dataclass(frozen=True, slots=True)
class ToldLease:
    """A lease that must go, the request it goes for, and why: reclaim, priority or elastic."""

    lease_id: int
    request_id: int
    why: str


def tell(found: Sequence[ToldLease], *, grace_s: int, now: datetime) -> list[Lease]:
    """Let leases know that they end after the grace period; returns those that were told.

    Leases that ended, or were told, meanwhile are passed over, and requests that do not wait any more. When not
    all that go for one request can be told, none of them is: alone they would make no room. Call inside a
    transaction; locks leases, then nodes.
    """
    asking = LeaseRequest.objects.filter(pk__in=[one.request_id for one in found], state=RequestState.QUEUED)
    queued = set(asking.values_list("pk", flat=True))
    why = {one.lease_id: one for one in found if one.request_id in queued}
    leases = lock_leases(why)
    still = {ls.pk for ls in leases if ls.state in TOLD and ls.preempt_at is None}
    lost = {one.request_id for one in why.values() if one.lease_id not in still}
    chosen = [ls for ls in leases if ls.pk in still and why[ls.pk].request_id not in lost]
    at = now + timedelta(seconds=grace_s)
    for lease in chosen:
        one = why[lease.pk]
        lease.preempt_at, lease.preempted_for_id = at, one.request_id
        facts = {"ends_at": at.isoformat(), "why": one.why}
        record(None, "lease.told_to_go", lease.uid, at=now, team_id=lease.team_id, **facts)
        notify([lease.user], "lease.preempted_soon", target=lease.uid, at=now, is_news=True, **facts)
    Lease.objects.bulk_update(chosen, ["preempt_at", "preempted_for"])
    _news(chosen, now)
    return chosen


@transaction.atomic
def spare(lease_ids: Iterable[int] = (), *, now: datetime) -> int:
    """Let leases stay that were told to go and need not any more; returns how many. Safe to repeat.

    These are the ones named, and all whose request does not wait any more: withdrawn, or started elsewhere.
    """
    rows = fetch(
        "SELECT l.id FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.preempted_for_id"  # noqa: S608 (our own states)
        " WHERE l.preempted_for_id IS NOT NULL AND l.clean_at IS NULL AND l.preempt_at > %s"
        f" AND l.state IN {in_sql(WANTED_ON_NODE)} AND (r.state <> '{RequestState.QUEUED}' OR l.id = ANY(%s))"
        " ORDER BY l.id LIMIT %s",
        [now, list(lease_ids), MOST],
    )
    if not rows:
        return 0
    leases = [ls for ls in lock_leases([pk for (pk,) in rows]) if ls.state in TOLD and ls.preempt_at]
    for lease in leases:
        lease.preempt_at = lease.preempted_for = None
        record(None, "lease.spared", lease.uid, at=now, team_id=lease.team_id)
        facts = {"not_after": lease.not_after.isoformat()}
        notify([lease.user], "lease.spared", target=lease.uid, at=now, is_news=True, **facts)
    Lease.objects.bulk_update(leases, ["preempt_at", "preempted_for"])
    _news(leases, now)
    return len(leases)


def spare_idle(*, now: datetime) -> int:
    """Let leases stay whose request does not wait any more; see ``spare``."""
    return spare(now=now)


@transaction.atomic
def preempt_due(*, now: datetime) -> int:
    """End leases whose grace period is over, at the instant it was. Returns how many. Safe to repeat.

    They end by the ordinary path; their request goes back to the queue with the time that is left.
    """
    rows = fetch(
        "SELECT id FROM leases_lease WHERE preempted_for_id IS NOT NULL AND clean_at IS NULL AND preempt_at <= %s"  # noqa: S608 (our own states)
        f" AND state IN {in_sql(WANTED_ON_NODE)} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED",
        [now, MOST],
    )
    leases = lock_leases([pk for (pk,) in rows]) if rows else []
    by_end: dict[datetime, list[Lease]] = {}
    for lease in leases:
        if lease.preempt_at is not None:
            by_end.setdefault(lease.preempt_at, []).append(lease)
    for ended_at, group in sorted(by_end.items()):
        live = [ls for ls in group if ls.state in TOLD]
        end_leases(live, reason=EndReason.PREEMPTED, at=ended_at)
        for lease in live:
            if lease.end_reason != EndReason.PREEMPTED:
                continue  # its own time was up before
            facts = {"left_s": max(0, int((lease.not_after - ended_at).total_seconds()))}
            record(None, "lease.preempted", lease.uid, at=now, team_id=lease.team_id)
            if not lease.is_extra:
                notify([lease.user], "lease.preempted", target=lease.uid, at=now, is_news=True, **facts)
    return len(leases)


def _news(leases: Sequence[Lease], now: datetime) -> None:
    """Tell nodes and browsers that ends have moved."""
    if leases:
        raise_revision([lease.node_id for lease in leases])
        announce(leases, at=now)
