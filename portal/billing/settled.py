"""How far the events of a lease are settled: the line up to which what it cost is final."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from portal.common.sql import fetch, in_sql
from portal.leases.states import WANTED_ON_NODE, LeaseState

# What may still run, end or go on: each of these has a next event that stops or starts the money clock.
_UNSETTLED = in_sql(WANTED_ON_NODE)
_OWN = """least(%s, n.last_seen_at, l.not_after, l.preempt_at)"""


def settled_until(lease_ids: Iterable[int] | None, *, now: datetime) -> dict[int, datetime]:
    """Return by lease the instant before which no event of it can come any more.

    A lease that is not in the answer has nothing left that could start or stop its money clock: all of its events
    are settled. None asks for every lease. The leases should be locked, as their next event moves the line.

    The next event of a lease that is prepared, active or interrupted is dated at the earliest of

    - its node's last word: a node that falls silent, or comes back without its journal, stops the clock there,
      and ``last_seen_at`` only rises;
    - its end, ``not_after``, and the instant at which it is preempted: both are kept however late anybody looks;
    - now: a release, a fault, maintenance and a node's report are dated when they come.

    What lives with others ends when its gang or base does, so their lines bound it too, and so does the end of one
    that has ended already. Events of a lease never run backwards, so its last event bounds it from below. A node
    never heard (``last_seen_at`` NULL) bounds nothing: no lease on it has begun.
    """
    asked = None if lease_ids is None else sorted(set(lease_ids))
    rows = fetch(
        f"""
        WITH asked AS (
          SELECT id, request_id, generation, node_id, not_after, preempt_at FROM leases_lease
          WHERE state IN {_UNSETTLED} AND (%s OR id = ANY(%s)))
        SELECT l.id, greatest(
          (SELECT max(e.at) FROM leases_leaseevent e WHERE e.lease_id = l.id),
          least({_OWN}, (
            SELECT min(CASE WHEN o.state IN {_UNSETTLED}
                       THEN least(m.last_seen_at, o.not_after, o.preempt_at) ELSE o.ended_at END)
            FROM leases_lease o JOIN fleet_node m ON m.id = o.node_id
            WHERE o.request_id = l.request_id AND o.generation = l.generation AND NOT o.is_extra
            AND o.id <> l.id AND o.state <> '{LeaseState.BOOKED}')))
        FROM asked l JOIN fleet_node n ON n.id = l.node_id
        """,  # noqa: S608 (our own states)
        [asked is None, asked or [], now],
    )
    return dict(rows)
