"""Keep what was forecast and what came, and learn from it how far forecasts can be trusted."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal.leases import forecast_records, promises
from portal.leases.forecasting import raw_waits
from portal.leases.published_snapshot import picture, publish_calibration, published_calibration
from portal.policies.selectors import active_policy
from scheduler.engine.calibration import Calibration, calibrated

MOST_AT_ONCE = 500
FRESH = timedelta(minutes=10)  # who has no forecast by then is not asked about again


def note(*, now: datetime) -> int:
    """Settle the forecasts whose start came, judge promises, and keep the first forecast of every wait that is new.

    It is a promise where the policy says so. Safe to repeat and in parallel: there is one forecast per wait. Answers
    how many were made.
    """
    forecast_records.settle(now=now)
    promises.judge(now=now)
    seen = picture()
    if seen is None:
        return 0
    made_at = seen.book.taken_at
    queued = forecast_records.awaited(since=now - FRESH, until=made_at, most=MOST_AT_ONCE)
    if not queued:
        return 0
    waits = {number: raw_s for number, raw_s in raw_waits(seen, queued).items() if raw_s > 0}
    made = forecast_records.keep(waits, queued, made_at=made_at, calibration=published_calibration())
    policy = active_policy()
    if policy.promise_p90:
        promises.promise_starts({key: queued[key] for key in waits}, policy_version=policy.version)
    return made


def calibrate(*, now: datetime) -> Calibration:
    """Learn from the record, publish it for forms and pages, and forget what is old. Safe to repeat."""
    forecast_records.prune(now=now)
    found = calibrated(forecast_records.samples(now=now))
    publish_calibration(found)
    return found
