"""The queue as operators look at it: by flavor, with the longest wait and when the next should start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.catalog.models import Flavor
from portal.common.moments import span
from portal.common.sql import fetch, in_sql
from portal.common.units import DAY_S, HOUR_S, MINUTE_S
from portal.leases import forecasting
from portal.leases.models import LeaseRequest
from portal.leases.states import LIVE_ON_NODE, RequestState

MOST = 8
_QUEUE = f"""
SELECT flavor_id, count(*), min(queued_at), (array_agg(id ORDER BY priority DESC, queued_at, id))[1]
  FROM leases_leaserequest WHERE state = '{RequestState.QUEUED}' GROUP BY flavor_id ORDER BY 2 DESC, 3 LIMIT {MOST}
"""  # noqa: S608 (our own states)
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
class QueueRow:
    """What waits for one flavor; ``starts_at`` is the likely start of the first of them, None unknown."""

    flavor: str
    count: int
    longest: str
    starts_at: datetime | None
    share: int


@dataclass(frozen=True, slots=True)
class StartWaits:
    """How many leases were granted in 24 hours, and the median and ninth decile of their waits in words, or None."""

    count: int
    text: str | None


def queue_by_flavor(*, now: datetime) -> list[QueueRow]:
    """Return the queue by flavor, the most wanted first, in three queries."""
    found = fetch(_QUEUE)
    if not found:
        return []
    flavors = Flavor.objects.in_bulk([flavor for flavor, *_rest in found])
    heads = list(LeaseRequest.objects.filter(pk__in=[head for *_rest, head in found]))
    starts = forecasting.estimates(heads, now=now)
    most = max(count for _flavor, count, *_rest in found)
    rows = []
    for flavor_id, count, since, head in found:
        start, flavor = starts.get(head), flavors[flavor_id]
        waited = span(max(0, int((now - since).total_seconds()))) or ""
        rows.append(
            QueueRow(
                flavor.shown_name, count, waited, start.likely_at if start else None, 100 * count // most
            )
        )
    return rows


def start_waits(*, now: datetime) -> StartWaits:
    """Return how long leases of the last 24 hours had waited before they were granted; booked starts aside."""
    ((count, middle, late),) = fetch(_WAITS, {"since": now - timedelta(days=1)})
    return StartWaits(count, None if middle is None else f"{_short(middle)} / {_short(late)}")


def _short(seconds: int) -> str:
    """Return a wait by its largest unit only."""
    seconds = max(0, seconds)
    unit = next((size for size in (DAY_S, HOUR_S, MINUTE_S) if seconds >= size), 1)
    return span(seconds // unit * unit) or ""
