"""The record of shown forecasts: what came of them, how far the next ones can be trusted, how good they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal.common.sql import execute, fetch
from portal.leases.models import StartForecast
from portal.leases.states import LeaseState, RequestState
from scheduler.engine.calibration import MOST_SAMPLES, Calibration, Sample

KEEP = timedelta(days=90)
OPEN = timedelta(days=30)  # who waited longer than this is not looked for any more
WEEKS = 8
MOST_SHOWN = 50_000
# Bounds of the shown likely wait, in seconds; the last one is open.
LENGTHS = (300, 1800, 7200, 28_800)
SETTLE = (
    "UPDATE leases_startforecast f SET started_at = s.at FROM ("  # noqa: S608 (our own states)
    " SELECT f.id, min(l.starts_at) AS at FROM leases_startforecast f"
    " JOIN leases_lease l ON l.request_id = f.request_id AND l.starts_at >= f.queued_at AND NOT l.is_extra"
    f" AND l.state <> '{LeaseState.BOOKED}'"
    " WHERE f.started_at IS NULL AND f.made_at > %s GROUP BY f.id) s WHERE f.id = s.id AND f.started_at IS NULL"
)
# Newest first; a wait that ended without a start lasted until the request's last step.
RECORD = (
    "SELECT f.raw_s, extract(epoch FROM f.p50_at - f.made_at)::float,"  # noqa: S608 (our own states)
    " extract(epoch FROM f.p90_at - f.made_at)::float,"
    f" extract(epoch FROM coalesce(f.started_at, CASE WHEN r.state <> '{RequestState.QUEUED}' THEN"
    " (SELECT max(e.at) FROM leases_requestevent e WHERE e.request_id = r.id) END, %s) - f.made_at)::float,"
    " f.started_at IS NOT NULL"
    ", extract(epoch FROM f.made_at)::float"
    " FROM leases_startforecast f JOIN leases_leaserequest r ON r.id = f.request_id"
    " ORDER BY f.made_at DESC, f.id DESC LIMIT %s"
)
# In all, by week and by shown likely wait; waits that go on count once they have passed their P90.
SCORES = (
    "SELECT grouping(week), grouping(length), week, length, count(*), count(*) FILTER (WHERE started_at <= p50_at),"  # noqa: S608 (our own states)
    " count(*) FILTER (WHERE started_at <= p90_at),"
    " percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM p90_at - p50_at)::float)"
    " FROM (SELECT p50_at, p90_at, started_at, date_trunc('week', made_at AT TIME ZONE 'UTC')::date AS week,"
    "  width_bucket(extract(epoch FROM p50_at - made_at)::float, %s::float[]) AS length"
    "  FROM leases_startforecast f WHERE made_at > %s AND (started_at IS NOT NULL OR p90_at < %s AND EXISTS"
    f"  (SELECT 1 FROM leases_leaserequest r WHERE r.id = f.request_id AND r.state = '{RequestState.QUEUED}'))"
    "  ORDER BY made_at DESC LIMIT %s) shown GROUP BY GROUPING SETS ((), (week), (length))"
)
AWAITED = (
    "SELECT r.id, r.queued_at FROM leases_leaserequest r"  # noqa: S608 (our own states)
    f" WHERE r.state = '{RequestState.QUEUED}' AND r.starts_at IS NULL"
    " AND r.queued_at > %s AND r.queued_at <= %s AND NOT EXISTS (SELECT 1 FROM leases_startforecast f"
    " WHERE f.request_id = r.id AND f.queued_at = r.queued_at) ORDER BY r.queued_at, r.id LIMIT %s"
)


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """How good some forecasts were: shares in thousandths, width in seconds; None where there are no samples.

    ``label`` is the first day of a week, or the bounds of the likely wait in seconds (None: open).
    """

    label: Any
    samples: int
    before_p50_milli: int | None
    before_p90_milli: int | None
    width_s: int | None


@dataclass(frozen=True, slots=True)
class Quality:
    """How good forecasts were over the last weeks, in all, by week (newest first) and by shown likely wait."""

    overall: ForecastScore
    weeks: list[ForecastScore]
    lengths: list[ForecastScore]


def settle(*, now: datetime) -> int:
    """Note the starts that came. Safe to repeat and in parallel; answers how many were new."""
    return execute(SETTLE, [now - OPEN])


def prune(*, now: datetime) -> None:
    """Forget what is older than ``KEEP``. Safe to repeat."""
    StartForecast.objects.filter(made_at__lt=now - KEEP).delete()


def awaited(*, since: datetime, until: datetime, most: int) -> dict[int, datetime]:
    """Return waiting requests without a forecast for this wait, by id with the instant they were queued."""
    return dict(fetch(AWAITED, [since, until, most]))


def samples(*, now: datetime) -> list[Sample]:
    """Return the last forecasts with what came of them, oldest first, as the engine learns from them."""
    rows = fetch(RECORD, [now, MOST_SAMPLES])
    return [
        Sample(raw, max(wait, 0.0), is_over, p50, p90, made)
        for raw, p50, p90, wait, is_over, made in reversed(list(rows))
    ]


def keep(
    raw_by_request: dict[int, float],
    queued: dict[int, datetime],
    *,
    made_at: datetime,
    calibration: Calibration,
) -> int:
    """Store the first forecast of these waits as it would be shown; one that is stored already stays."""
    rows = []
    for request_id, raw_s in raw_by_request.items():
        window = calibration.window(raw_s)
        rows.append(
            StartForecast(
                request_id=request_id,
                queued_at=queued[request_id],
                made_at=made_at,
                p50_at=made_at + timedelta(seconds=window.p50_s),
                p90_at=made_at + timedelta(seconds=window.p90_s),
                raw_s=int(raw_s),
            )
        )
    StartForecast.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def quality(*, now: datetime) -> Quality:
    """Return how good the forecasts of the last weeks were.

    Counted are waits that ended in a start, and waits that have passed their P90: these have missed already.
    """
    weeks: dict[Any, ForecastScore] = {}
    lengths: dict[Any, ForecastScore] = {}
    overall = ForecastScore(None, 0, None, None, None)
    bounds = list(zip((0, *LENGTHS), (*LENGTHS, None), strict=True))
    rows = fetch(SCORES, [list(LENGTHS), now - timedelta(weeks=WEEKS), now, MOST_SHOWN])
    for not_by_week, not_by_length, week, length, count, half, most, width in rows:
        if not count:
            continue
        label = None if not_by_week and not_by_length else bounds[length] if not_by_week else week
        score = ForecastScore(label, count, half * 1000 // count, most * 1000 // count, int(width))
        if label is None:
            overall = score
        else:
            (lengths if not_by_week else weeks)[label] = score
    return Quality(
        overall,
        [weeks[week] for week in sorted(weeks, reverse=True)],
        [lengths.get(each, ForecastScore(each, 0, None, None, None)) for each in bounds],
    )
