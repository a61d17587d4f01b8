"""Hours of leases, made of their minutes: what pictures of days and weeks read."""

from __future__ import annotations

from datetime import datetime, timedelta

from portal.common.sql import execute

# Minutes that wait in Redis for longer than this are in the pictures of minutes only.
LATE = timedelta(hours=2)
_PUT = """
INSERT INTO telemetry_hourrollup (lease_id, hour, minutes, util_mean, memory_max_mib)
SELECT lease_id, date_trunc('hour', minute, 'UTC') AS hour, count(*), avg(util_mean), max(memory_max_mib)
  FROM telemetry_minuterollup
 WHERE minute >= %s AND minute < %s AND lease_id IS NOT NULL AND util_mean IS NOT NULL
 GROUP BY 1, 2
ON CONFLICT (hour, lease_id) DO UPDATE SET minutes = excluded.minutes, util_mean = excluded.util_mean,
  memory_max_mib = excluded.memory_max_mib
 WHERE telemetry_hourrollup.minutes <= excluded.minutes
"""


def roll_up_hours(*, now: datetime) -> int:
    """Make the hours that may still grow anew from their minutes; returns how many rows it wrote. Safe to repeat."""
    begin = (now - LATE).replace(minute=0, second=0, microsecond=0)
    if now.minute >= 15:  # the hour before is complete but for minutes that came late
        begin = now.replace(minute=0, second=0, microsecond=0)
    return execute(_PUT, [begin, now + timedelta(minutes=5)])
