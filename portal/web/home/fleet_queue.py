"""The queue as operators look at it: by flavor, with the longest wait and when the next should start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.catalog.models import Flavor
from portal.common.moments import span
from portal.common.sql import fetch
from portal.common.units import DAY_S, HOUR_S, MINUTE_S
from portal.leases import forecasting
from portal.leases.models import LeaseRequest
from portal.leases.start_waits import waits_of_starts
from portal.leases.states import RequestState

MOST = 8
_QUEUE = f"""
SELECT flavor_id, count(*), min(queued_at), (array_agg(id ORDER BY priority DESC, queued_at, id))[1]
  FROM leases_leaserequest WHERE state = '{RequestState.QUEUED}' GROUP BY flavor_id ORDER BY 2 DESC, 3 LIMIT {MOST}
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
    waits = waits_of_starts(since=now - timedelta(days=1))
    if waits.middle_s is None or waits.late_s is None:
        return StartWaits(waits.count, None)
    return StartWaits(waits.count, f"{_short(waits.middle_s)} / {_short(waits.late_s)}")


def _short(seconds: int) -> str:
    """Return a wait by its largest unit only."""
    seconds = max(0, seconds)
    unit = next((size for size in (DAY_S, HOUR_S, MINUTE_S) if seconds >= size), 1)
    return span(seconds // unit * unit) or ""
