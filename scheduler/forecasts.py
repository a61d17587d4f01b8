"""Keep what was forecast and what came, and learn from it how far forecasts can be trusted."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal.leases import forecast_records
from portal.leases.forecasting import raw_waits
from portal.leases.published_snapshot import picture, publish_calibration, published_calibration
from scheduler.engine.calibration import Calibration, calibrated

MOST_AT_ONCE = 500
FRESH = timedelta(minutes=10)  # who has no forecast by then is not asked about again


def note(*, now: datetime) -> int:
    """Settle the forecasts whose start came, and keep the first forecast of every wait that is new.

    Safe to repeat and in parallel: there is one forecast per wait. Answers how many were made.
    """
    forecast_records.settle(now=now)
    seen = picture()
    if seen is None:
        return 0
    made_at = seen.book.taken_at
    queued = forecast_records.awaited(since=now - FRESH, until=made_at, most=MOST_AT_ONCE)
    if not queued:
        return 0
    waits = {number: raw_s for number, raw_s in raw_waits(seen, queued).items() if raw_s > 0}
    return forecast_records.keep(waits, queued, made_at=made_at, calibration=published_calibration())


def calibrate(*, now: datetime) -> Calibration:
    """Learn from the record, publish it for forms and pages, and forget what is old. Safe to repeat."""
    forecast_records.prune(now=now)
    found = calibrated(forecast_records.samples(now=now))
    publish_calibration(found)
    return found
