"""Boards that are shared: the host placement that holds the board, and the sums of what runs inside it.

A share that is booked has its host for the time it is booked, but counts in the host's sums only from its start
on, as its quota does: until then others may use what it will need. Where shares reach from one host into another
of the same board and mode, the two become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.types.range import Int8Range, TimestamptzRange

from portal.common.sql import execute, fetch
from portal.leases.models import Placement, SharedHost
from portal.leases.states import LeaseState

_COUNT = (
    "UPDATE leases_sharedhost h SET used_share_milli = h.used_share_milli + %s * s.share,"
    " used_memory_mib = h.used_memory_mib + %s * s.memory, clients = h.clients + %s * s.clients"
    " FROM (SELECT host_id, sum(share_milli) AS share, sum(memory_mib) AS memory, count(*) AS clients"
    "  FROM leases_placement WHERE id = ANY(%s) AND host_id IS NOT NULL GROUP BY host_id) s"
    " WHERE h.placement_id = s.host_id"
)
# A host whose shares are all gone is free; one in whose time none ran held nothing at any time. Where only booked
# shares are left it is held from the first of them on, and what ran before is no part of its time any more.
_SETTLE = f"""
UPDATE leases_placement p SET is_live = s.first IS NOT NULL, period = CASE
         WHEN s.first IS NOT NULL THEN tstzrange(greatest(s.first, lower(p.period)), upper(p.period))
         WHEN NOT s.has_run THEN 'empty'
         ELSE tstzrange(lower(p.period), greatest(least(%s, leases_next_start(p)),
                        lower(p.period) + interval '1 microsecond')) END
  FROM (SELECT h.id, min(lower(s.period)) FILTER (WHERE s.is_live) AS first,
               coalesce(bool_or(NOT s.is_live AND upper(s.period) > lower(h.period)), false) AS has_run,
               coalesce(bool_or(s.is_live AND l.state <> '{LeaseState.BOOKED}'), false) AS runs
          FROM leases_placement h LEFT JOIN leases_placement s ON s.host_id = h.id
          LEFT JOIN leases_lease l ON l.id = s.lease_id
         WHERE h.id = ANY(%s) GROUP BY h.id) s
 WHERE p.id = s.id AND p.is_live AND NOT s.runs
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class SharedBoard:
    """A board that is to be shared: what all its shares may be promised together, and how many there may be."""

    device_id: int
    grid: int
    memory_mib: int
    max_clients: int


def host_for(
    board: SharedBoard, *, mode: str, team_id: int, period: TimestamptzRange, is_booked: bool
) -> Placement:
    """Return the board's host placement for this mode and time, made when there is none.

    What is held now lies in the host that is there now, also when that outlasts its period. Raises
    IntegrityError where something else holds the board. Call in the transaction that stores the share.
    """
    rows = Placement.objects.filter(device_id=board.device_id, is_live=True, lease__isnull=True, mode=mode)
    hosts = list(rows.order_by("period"))
    span = period
    meant: list[Placement] = []
    for host in hosts:
        is_here = not is_booked and host.period.lower <= period.lower
        if is_here or (host.period.lower < span.upper and host.period.upper > span.lower):
            meant.append(host)
            span = TimestamptzRange(min(host.period.lower, span.lower), max(host.period.upper, span.upper))
    if not meant:
        return _opened(board, mode, team_id, period)
    host = meant[0]
    for other in meant[1:]:
        _absorb(host, other)
    if (host.period.lower, host.period.upper) != (span.lower, span.upper):
        host.period = span
        host.save(update_fields=["period"])
    return host


def _opened(board: SharedBoard, mode: str, team_id: int, period: TimestamptzRange) -> Placement:
    host = Placement.objects.create(
        lease=None,
        device_id=board.device_id,
        team_id=team_id,
        mode=mode,
        start=0,
        size=board.grid,
        slots=Int8Range(0, board.grid),
        period=period,
        share_milli=1000,
        memory_mib=board.memory_mib,
    )
    SharedHost.objects.create(placement=host, memory_mib=board.memory_mib, max_clients=board.max_clients)
    return host


def _absorb(host: Placement, other: Placement) -> None:
    """Let one host take over the shares and sums of another, which then held nothing of its own."""
    execute("UPDATE leases_placement SET is_live = false, period = 'empty' WHERE id = %s", [other.pk])
    execute(
        "WITH gone AS (SELECT placement_id, used_share_milli, used_memory_mib, clients FROM leases_sharedhost"
        "  WHERE placement_id = %s)"
        " UPDATE leases_sharedhost h SET used_share_milli = CASE WHEN h.placement_id = %s"
        "  THEN h.used_share_milli + g.used_share_milli ELSE 0 END, used_memory_mib = CASE"
        "  WHEN h.placement_id = %s THEN h.used_memory_mib + g.used_memory_mib ELSE 0 END, clients = CASE"
        "  WHEN h.placement_id = %s THEN h.clients + g.clients ELSE 0 END"
        " FROM gone g WHERE h.placement_id IN (%s, %s)",
        [other.pk, host.pk, host.pk, host.pk, host.pk, other.pk],
    )
    execute("UPDATE leases_placement SET host_id = %s WHERE host_id = %s", [host.pk, other.pk])


def count_in(share_ids: Sequence[int]) -> None:
    """Count shares that begin in their hosts' sums. Raises IntegrityError where a board has no room for them."""
    if share_ids:
        execute(_COUNT, [1, 1, 1, list(share_ids)])


def count_out(share_ids: Sequence[int], *, at: datetime) -> None:
    """Take shares that have ended out of their hosts' sums and free the hosts that hold nothing any more."""
    execute(_COUNT, [-1, -1, -1, list(share_ids)])
    settle(share_ids, at=at)


def settle(share_ids: Sequence[int], *, at: datetime) -> None:
    """Free the hosts of these shares, which are not live any more, where nothing runs inside; or until it does."""
    rows = fetch(
        "SELECT DISTINCT host_id FROM leases_placement WHERE id = ANY(%s) ORDER BY 1", [list(share_ids)]
    )
    hosts = [host_id for (host_id,) in rows if host_id is not None]
    if hosts:
        execute(_SETTLE, [at, hosts])
