"""What was measured of leases over their lives: the most memory, how busy they were, and how much of it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.common.sql import fetch

MINUTE = timedelta(minutes=1)
LEAST_SAMPLES = 45  # seconds of a minute that must have been measured
SM, UTIL = "sm", "util"
# ``whole`` are the full minutes of each lease; what was measured in the parts before and after counts for its peak.
_ASKED = """
WITH asked AS (
  SELECT *, CASE WHEN since = date_trunc('minute', since) THEN since
                 ELSE date_trunc('minute', since) + interval '1 minute' END AS first,
         date_trunc('minute', until) AS last
    FROM unnest(%(ids)s::bigint[], %(since)s::timestamptz[], %(until)s::timestamptz[]) AS a (id, since, until))
"""
_MINUTES = f"""
{_ASKED}
SELECT a.id,
       count(*) FILTER (WHERE m.minute >= a.first AND m.minute < a.last AND m.samples >= {LEAST_SAMPLES}
                        AND m.memory_max_mib IS NOT NULL AND coalesce(m.sm_mean, m.util_mean) IS NOT NULL),
       max(m.memory_max_mib),
       avg(CASE WHEN m.sm_mean IS NULL THEN m.util_mean
                ELSE greatest(m.sm_mean, m.tensor_mean, m.bandwidth_mean) END),
       count(*) FILTER (WHERE m.sm_mean IS NULL) = 0
  FROM asked a JOIN telemetry_minuterollup m ON m.lease_id = a.id
   AND m.minute >= date_trunc('minute', a.since) AND m.minute < a.until
 WHERE m.minute >= date_trunc('minute', %(begin)s::timestamptz) AND m.minute < %(end)s
 GROUP BY 1
"""  # noqa: S608 (our own text)
# An hour says how many of its minutes were measured: those of them that can be full ones count.
_HOURS = f"""
{_ASKED}
SELECT a.id,
       sum(least(h.minutes, extract(
             epoch FROM least(h.hour + interval '1 hour', a.last) - greatest(h.hour, a.first)) / 60))
         FILTER (WHERE h.memory_max_mib IS NOT NULL AND h.hour < a.last AND h.hour + interval '1 hour' > a.first),
       max(h.memory_max_mib), sum(h.minutes * h.util_mean) / sum(h.minutes)
  FROM asked a JOIN telemetry_hourrollup h ON h.lease_id = a.id
   AND h.hour >= date_trunc('hour', a.since, 'UTC') AND h.hour < a.until
 WHERE h.hour >= date_trunc('hour', %(begin)s::timestamptz, 'UTC') AND h.hour < %(end)s
 GROUP BY 1
"""  # noqa: S608 (our own text)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What was measured of a lease: ``known_min`` of its ``due_min`` full minutes.

    ``peak_mib`` is the most device memory that all its units held together, ``activity`` the mean part of it at work
    (0 to 1): by multiprocessors, tensor cores or memory bandwidth (``signal`` is "sm"), else by utilisation ("util"),
    which is never less. None and "" are unknown.
    """

    due_min: int
    known_min: int
    peak_mib: int | None
    activity: float | None
    signal: str

    @property
    def is_whole(self) -> bool:
        """Whether every full minute was measured."""
        return self.peak_mib is not None and self.activity is not None and self.known_min >= self.due_min


def runs_of(lives: Mapping[int, tuple[datetime, datetime]]) -> dict[int, MeasuredRun]:
    """Return what was measured of leases, given by id from when until when they were active. Two queries.

    From their minutes, and from their hours where these know more of it: minutes are kept for less long.
    """
    if not lives:
        return {}
    spans = list(lives.values())
    values = {
        "ids": list(lives), "since": [one[0] for one in spans], "until": [one[1] for one in spans],
        "begin": min(one[0] for one in spans), "end": max(one[1] for one in spans),
    }  # fmt: skip
    minutes = {pk: rest for pk, *rest in fetch(_MINUTES, values)}
    hours = {pk: rest for pk, *rest in fetch(_HOURS, values)}
    found = {}
    for pk, (since, until) in lives.items():
        known, peak, percent, has_sm = minutes.get(pk, (0, None, None, False))
        hour_known, hour_peak, hour_percent = hours.get(pk, (None, None, None))
        signal = SM if has_sm else UTIL
        if hour_known is not None and hour_known > known:
            known, percent, signal = int(hour_known), hour_percent, UTIL
        peaks = [one for one in (peak, hour_peak) if one is not None]
        found[pk] = MeasuredRun(
            due_min=_full_minutes(since, until),
            known_min=known,
            peak_mib=max(peaks, default=None),
            activity=None if percent is None else min(1.0, float(percent) / 100),
            signal="" if percent is None else signal,
        )
    return found


def _full_minutes(since: datetime, until: datetime) -> int:
    first = since.replace(second=0, microsecond=0)
    first += MINUTE if first < since else timedelta(0)
    return max(0, (until.replace(second=0, microsecond=0) - first) // MINUTE)
