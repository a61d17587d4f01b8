"""What clusters counted for leases of their pools: taken from agents, each row checked, none believed for money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F

from nodeagent.protocol.cluster_usage import ClusterUsage as UsageFrame
from nodeagent.protocol.cluster_usage import ClusterUsageRow
from portal.cluster_usage.models import ClusterBooks, CountedJob
from portal.fleet.models import Node
from portal.leases.models import Lease

# An agent further off than this has a broken clock: nothing that it dates means anything.
MOST_SKEW: Final = timedelta(days=1)
AHEAD: Final = timedelta(minutes=2)
# A job is submitted when its lease is granted. What began longer before that is not its job.
BEFORE_GRANT: Final = timedelta(minutes=5)
MOST_ROWS_OF_LEASE: Final = 20


@transaction.atomic
def store_cluster_usage(node_id: int, told: UsageFrame, *, now: datetime) -> int:
    """Keep what a cluster counted for this node's leases; returns how many rows are new. Safe to repeat.

    Rows that cannot be true are counted on the node's ClusterBooks with a code and left out: ``unknown_lease`` (none
    of this node and generation), ``other_clock``, ``future``, ``too_early``, ``longer_than_span``, ``too_many_rows``.
    A row that is known changes nothing, whatever it says now. What a former agent of the node says changes nothing.
    Locks the node.
    """
    node = Node.objects.select_for_update(no_key=True).filter(pk=node_id, epoch=told.epoch).first()
    if node is None:
        return 0
    skew = datetime.fromtimestamp(told.told_at, UTC) - now
    uids = {row.lease for row in told.rows}
    leases = {lease.uid: lease for lease in Lease.objects.filter(node=node, uid__in=uids)}
    known = list(
        CountedJob.objects.filter(lease__in=leases.values()).values_list("lease_id", "job", "started_at")
    )
    keys, counts = set(known), Counter(lease_id for lease_id, _job, _at in known)
    refused: list[str] = []
    fresh: list[CountedJob] = []
    for row in told.rows:
        lease, why = _checked(row, leases, skew, now)
        if lease is None or why:
            refused.append(why)
            continue
        key = (lease.pk, row.job, _at(row.started_at))
        if key in keys:
            continue
        if counts[lease.pk] >= MOST_ROWS_OF_LEASE:
            refused.append("too_many_rows")
            continue
        keys.add(key)
        counts[lease.pk] += 1
        fresh.append(
            CountedJob(
                lease=lease,
                job=row.job,
                units=row.units,
                started_at=key[2],
                ended_at=_at(row.ended_at),
                elapsed_s=row.elapsed_s,
                state=row.state,
                ended_by=row.ended_by,
                skew_s=round(skew.total_seconds()),
                told_at=now,
            )
        )
    CountedJob.objects.bulk_create(fresh)
    said = {"state": told.books, "why": told.why, "told_at": now}
    ClusterBooks.objects.update_or_create(node=node, defaults=said)
    if refused:
        ClusterBooks.objects.filter(node=node).update(
            refused=F("refused") + len(refused), refused_why=refused[-1]
        )
    return len(fresh)


def _checked(
    row: ClusterUsageRow, leases: Mapping[str, Lease], skew: timedelta, now: datetime
) -> tuple[Lease | None, str]:
    """Return the lease of a row and "", or why it cannot be true."""
    lease = leases.get(row.lease)
    if lease is None or lease.generation != row.generation:
        return None, "unknown_lease"
    if abs(skew) > MOST_SKEW:
        return None, "other_clock"
    started_at, ended_at = _at(row.started_at), _at(row.ended_at)
    if ended_at < started_at or row.elapsed_s > row.ended_at - row.started_at:
        return None, "longer_than_span"
    if ended_at > now + max(skew, timedelta(0)) + AHEAD:
        return None, "future"
    if started_at < lease.starts_at + min(skew, timedelta(0)) - BEFORE_GRANT:
        return None, "too_early"
    return lease, ""


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
