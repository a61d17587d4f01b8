"""How long leases had waited before they were granted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from portal.common.sql import fetch, in_sql
from portal.leases.states import LIVE_ON_NODE

# Waits of first grants: a gang waits once, and what came back into the queue waited for another reason.
_WAITS = f"""
SELECT count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY waited),
       percentile_disc(0.9) WITHIN GROUP (ORDER BY waited)
  FROM (SELECT extract(epoch FROM l.starts_at - r.queued_at)::int AS waited
          FROM (SELECT request_id, starts_at, generation, part FROM leases_lease
                 WHERE node_id = ANY(ARRAY(SELECT id FROM fleet_node)) AND clean_at > %(since)s
                UNION ALL SELECT request_id, starts_at, generation, part FROM leases_lease
                 WHERE state IN {in_sql(LIVE_ON_NODE)} AND clean_at IS NULL) AS l
          JOIN leases_leaserequest r ON r.id = l.request_id
         WHERE l.part = 0 AND l.generation = 1 AND r.starts_at IS NULL AND l.starts_at > %(since)s
           AND l.starts_at >= r.queued_at) AS starts
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class WaitsOfStarts:
    """How many leases were granted, and the median and the ninth decile of their waits in seconds (None: none was)."""

    count: int
    middle_s: int | None
    late_s: int | None


def waits_of_starts(*, since: datetime) -> WaitsOfStarts:
    """Return how long leases granted since an instant had waited; booked starts aside. One query."""
    ((count, middle, late),) = fetch(_WAITS, {"since": since})
    return WaitsOfStarts(count, middle, late)
