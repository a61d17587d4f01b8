"""Leases of one request that live together: the parts of a gang, and what an elastic lease has grown by.

The parts of a gang start, run and end together; what was grown (``is_extra``) ends with its base and may end
before it. Looked up here, moved by ``lifecycle`` (docs/gangs.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import QuerySet

from portal.common.rows import Rows
from portal.common.sql import fetch, in_sql
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import (
    ENDING_LEASES,
    LIVE_LEASES,
    WANTED_ON_NODE,
    EndReason,
    LeaseState,
    RequestState,
)

# What is granted is held this much longer than its time until it is active.
PREPARE_MARGIN = timedelta(minutes=5)
AGAIN = (EndReason.FAULT, EndReason.PREEMPTED, EndReason.MAINTENANCE)
MOST = 500
_GONE = (*ENDING_LEASES, LeaseState.ENDED)
_WANTED = in_sql(WANTED_ON_NODE)
_REQUESTS = Rows(LeaseRequest)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request's leases ended, all of them: why, and the whole seconds that are still owed if it goes on.

    ``has_run``: they had all become active.
    """

    request: LeaseRequest
    end_reason: str
    left_s: int
    has_run: bool = False


def lives_with_others(request: LeaseRequest) -> bool:
    """Say whether a request may have more than one live lease."""
    return request.nodes != 1 or request.most_count > 0


def others_of(leases: Sequence[Lease]) -> list[Lease]:
    """Return the wanted leases that have to end with these, locked, their requests at hand.

    Those that another transaction holds are passed over, so that nobody waits against the lock order: a
    sweep ends them (``lifecycle.end_left_behind``). An extra lease takes nothing with it.
    """
    asked = {ls.request_id for ls in leases if not ls.is_extra and lives_with_others(ls.request)}
    if not asked:
        return []
    return list(_lock_wanted().filter(request_id__in=asked).exclude(pk__in=[ls.pk for ls in leases]))


def gang_ids(lease: Lease) -> list[int]:
    """Return the ids of all wanted parts of the gang that a lease belongs to, its own alone where it is none."""
    if lease.request.nodes == 1 or lease.is_extra:
        return [lease.pk]
    parts = Lease.objects.filter(
        request=lease.request_id, generation=lease.generation, is_extra=False, state__in=WANTED_ON_NODE
    )
    return sorted({lease.pk, *parts.values_list("pk", flat=True)})


def gang_parts_of(leases: Sequence[Lease]) -> list[Lease]:
    """Return the other wanted parts of the gangs that these leases belong to, locked as by ``others_of``."""
    gangs = [ls for ls in leases if ls.request.nodes != 1 and not ls.is_extra]
    return [ls for ls in others_of(gangs) if not ls.is_extra]


def left_behind() -> list[tuple[Lease, str]]:
    """Return wanted leases whose gang or base has ended, locked, and why it ended."""
    rows = fetch(
        "SELECT DISTINCT ON (l.id) l.id, b.end_reason FROM leases_lease l"  # noqa: S608 (our own states)
        " JOIN leases_leaserequest r ON r.id = l.request_id AND (r.nodes <> 1 OR r.most_count > 0)"
        " JOIN leases_lease b ON b.request_id = l.request_id AND b.generation = l.generation"
        f"  AND NOT b.is_extra AND b.id <> l.id AND b.state IN {in_sql(_GONE)}"
        f" WHERE l.state IN {_WANTED} ORDER BY l.id, b.ended_at LIMIT %s",
        [MOST],
    )
    why: dict[int, str] = dict(rows)
    if not why:
        return []
    return [(lease, why[lease.pk]) for lease in _lock_wanted().filter(pk__in=why)]


def _lock_wanted() -> QuerySet[Lease]:
    """Return wanted leases by id, locked when they are read; those that another transaction holds are left out."""
    return (
        Lease.objects.filter(state__in=WANTED_ON_NODE)
        .select_related("team", "request")
        .select_for_update(of=("self",), skip_locked=True)
        .order_by("pk")
    )


def silent_gangs(leases: Sequence[Lease], *, at: datetime) -> set[int]:
    """Return the requests among these leases' whose other parts stand on a node that is not heard."""
    since = at - timedelta(seconds=settings.NODE_LOST_AFTER_S)
    rows = fetch(
        "SELECT DISTINCT l.request_id FROM leases_lease l JOIN fleet_node n ON n.id = l.node_id"  # noqa: S608 (our own states)
        f" WHERE l.request_id = ANY(%s) AND l.state IN {_WANTED} AND NOT l.is_extra"
        " AND NOT l.id = ANY(%s) AND n.last_seen_at < %s",
        [[ls.request_id for ls in leases], [ls.pk for ls in leases], since],
    )
    return {pk for (pk,) in rows}


def end_of(lease: Lease, *, at: datetime) -> datetime:
    """Return when a lease ends that becomes active at ``at``.

    The holder gets the whole time that is owed; what was cut short, grown or has something behind it ends
    when it was to end, however long it took to start.
    """
    until = at + timedelta(seconds=lease.request.remaining_s)
    room = lease.starts_at + timedelta(seconds=lease.request.remaining_s) + PREPARE_MARGIN
    if lease.is_extra or lease.cut_by or lease.not_after < room:
        until = min(until, lease.not_after)
    return max(until, at + timedelta(seconds=1))


def outcomes(gone: Sequence[Lease]) -> list[Outcome]:
    """Return the requests that these ended leases bring to an end: those of which nothing lives any more.

    Requests are locked and read anew, so that of two parts that end at the same time the later one sees the
    other's end, and a request that went on without them stays as it is: a lease of an earlier generation brings
    nothing to an end. Call in the transaction that ended them.
    """
    wanted = f"it.id = ANY(%s) AND it.state = '{RequestState.GRANTED}' ORDER BY it.id FOR UPDATE OF it"
    requests = {row.pk: row for row in _REQUESTS.where(wanted, [sorted({ls.request_id for ls in gone})])}
    alone, several = [], []
    for lease in gone:
        request = requests.get(lease.request_id)
        if request is None or lease.generation != request.attempts + 1:
            continue
        lease.request = request
        if not lives_with_others(request):
            alone.append(Outcome(request, lease.end_reason, _left_s([lease]), _has_run([lease])))
        elif request.pk not in several:
            several.append(request.pk)
    return alone + [
        _outcome(leases) for leases in _present(several) if not any(ls.state in LIVE_LEASES for ls in leases)
    ]


def outcomes_of(request_ids: Sequence[int]) -> list[Outcome]:
    """Return how these locked requests end whose present leases are all over, clean or not."""
    return [_outcome(leases) for leases in _present(request_ids)]


def _present(request_ids: Sequence[int]) -> list[list[Lease]]:
    """Return the leases of each request's present generation, in id order."""
    found: dict[int, list[Lease]] = {}
    if request_ids:
        there = Lease.objects.filter(request_id__in=request_ids).select_related("team", "request")
        for lease in there.order_by("pk"):
            if lease.generation == lease.request.attempts + 1:
                found.setdefault(lease.request_id, []).append(lease)
    return list(found.values())


def _outcome(leases: Sequence[Lease]) -> Outcome:
    base = [ls for ls in leases if not ls.is_extra]
    reasons = [ls.end_reason for ls in base]
    why = next((reason for reason in reasons if reason in AGAIN), reasons[0])
    return Outcome(base[0].request, why, _left_s(base), _has_run(base))


def _has_run(leases: Sequence[Lease]) -> bool:
    return all(lease.activated_at is not None for lease in leases)


def _left_s(leases: Sequence[Lease]) -> int:
    """Return how many seconds are still owed after lost leases; an extension counts for maintenance."""
    request = leases[0].request
    left = [
        ls.wanted_until - ls.ended_at for ls in leases if ls.wanted_until and ls.activated_at and ls.ended_at
    ]
    if left:
        return max(1, min(int(min(left).total_seconds()), request.duration_s))
    return max(1, request.remaining_s - _ran_together(leases))


def _ran_together(leases: Sequence[Lease]) -> int:
    """Whole seconds from when the last of them became active until the first ended; 0 when one never was."""
    starts = [ls.activated_at for ls in leases if ls.activated_at]
    ends = [ls.ended_at for ls in leases if ls.ended_at]
    if len(starts) < len(leases) or len(ends) < len(leases):
        return 0
    return max(0, int((min(ends) - max(starts)).total_seconds()))
