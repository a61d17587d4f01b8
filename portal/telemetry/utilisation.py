"""Hours of the fleet: what was allocated, used, held without use and not to be had, and what unused time cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal.common.sql import fetch, in_sql
from portal.leases.states import LIVE_ON_NODE

HOUR = timedelta(hours=1)
HOUR_S = 3600
LONGEST = timedelta(days=31)
# What ended is found by node and end, what lives by its state: both have an index of their own.
_LEASES = f"""
SELECT id, team_id, starts_at, clean_at, share_milli, request_id FROM leases_lease
 WHERE node_id = ANY(ARRAY(SELECT id FROM fleet_node)) AND clean_at > %(since)s AND starts_at < %(until)s
UNION ALL
SELECT id, team_id, starts_at, NULL, share_milli, request_id FROM leases_lease
 WHERE state IN {in_sql(LIVE_ON_NODE)} AND clean_at IS NULL
"""  # noqa: S608 (our own states)
_ALLOCATED = f"""
SELECT hour, sum(share_milli * extract(epoch FROM
         least(until, hour + interval '1 hour') - greatest(since, hour)))::float
  FROM (SELECT share_milli, greatest(starts_at, %(since)s) AS since,
               least(coalesce(clean_at, %(until)s), %(until)s) AS until FROM ({_LEASES}) AS l) AS held,
       generate_series(date_trunc('hour', since, 'UTC'), until, '1 hour') AS hour
 WHERE until > since GROUP BY hour
"""  # noqa: S608 (our own SQL)
# Of each hour: thousandths of a device times minutes, used and measured, and what the measured rest cost.
_USED = """
SELECT r.hour, sum(r.util_mean / 100 * r.minutes * l.share_milli), sum(r.minutes * l.share_milli)::float,
       sum((100 - r.util_mean) / 100 * r.minutes / 60 * l.share_milli / 1000
           * catalog_price_of(rate, f) * l.price_milli / 1000)::float
  FROM telemetry_hourrollup r JOIN leases_lease l ON l.id = r.lease_id JOIN catalog_flavor f ON f.id = l.flavor_id
  LEFT JOIN catalog_rate rate ON rate.device_model_id = f.device_model_id AND rate.valid @> r.hour
        AND rate.card_id = (SELECT id FROM catalog_ratecard WHERE is_default ORDER BY id LIMIT 1)
 WHERE r.hour >= %(since)s AND r.hour < %(until)s GROUP BY r.hour
"""
# Times of a device overlap where it is both ill and in maintenance: they count once.
_AWAY = """
SELECT hour, sum(extract(epoch FROM least(upper(span), hour + interval '1 hour') - greatest(lower(span), hour)))::float
  FROM (SELECT unnest(range_agg(span)) * tstzrange(%(since)s, %(until)s) AS span FROM (
          SELECT d.id, tstzrange(w.starts_at, w.ends_at) AS span FROM fleet_maintenancewindow w
            JOIN fleet_maintenancewindow_nodes n ON n.maintenancewindow_id = w.id
            JOIN fleet_device d ON d.node_id = n.node_id
           WHERE w.cancelled_at IS NULL AND w.starts_at < %(until)s AND w.ends_at > %(since)s
          UNION ALL
          SELECT device_id, tstzrange(at, cleared_at) FROM fleet_healthevent
           WHERE device_id IS NOT NULL AND severity = 'critical' AND at < %(until)s
             AND (cleared_at IS NULL OR cleared_at > %(since)s)) AS times GROUP BY id) AS away,
       generate_series(date_trunc('hour', lower(span), 'UTC'), upper(span), '1 hour') AS hour
 WHERE NOT isempty(span) GROUP BY hour
"""
# What people of teams held, measured and did not use, with its price, since an instant.
# The leases first, then the hours of each: nothing tells the planner how few of all hours these are.
_WASTE = """
WITH held AS MATERIALIZED (SELECT id, user_id, flavor_id, share_milli, price_milli FROM leases_lease
  WHERE team_id = ANY(%(teams)s) AND starts_at >= %(since)s - interval '40 days'
    AND (clean_at IS NULL OR clean_at > %(since)s))
SELECT l.user_id, sum((100 - r.util_mean) / 100 * w.cost)::float, sum(w.cost)::float
  FROM held l JOIN telemetry_hourrollup r ON r.lease_id = l.id AND r.hour >= %(since)s
  JOIN catalog_flavor f ON f.id = l.flavor_id
  JOIN catalog_rate rate ON rate.device_model_id = f.device_model_id AND rate.valid @> r.hour
   AND rate.card_id = (SELECT id FROM catalog_ratecard WHERE is_default ORDER BY id LIMIT 1)
  CROSS JOIN LATERAL (SELECT r.minutes / 60.0 * l.share_milli / 1000
                             * catalog_price_of(rate, f) * l.price_milli / 1000 AS cost) AS w
 GROUP BY l.user_id
"""
_FLEET = """
SELECT (SELECT count(*) FROM fleet_device WHERE is_accepted), (SELECT min(created_at) FROM fleet_node)
"""


@dataclass(frozen=True, slots=True)
class FleetHour:
    """One hour of the fleet, as means over it in thousandths of a device; the running hour up to now.

    ``used`` of ``measured`` was in use; of what was allocated beyond ``measured`` nobody knows. ``used`` is None
    where nothing was measured, and so is ``idle_micro``: what the measured, unused part cost. ``is_known`` is False
    before the fleet was there and after now.
    """

    at: datetime
    capacity: int
    allocated: int = 0
    used: int | None = None
    measured: int = 0
    unavailable: int = 0
    idle_micro: int | None = None
    is_known: bool = True

    @property
    def idle(self) -> int:
        """What was held, measured and not used."""
        return max(0, min(self.measured, self.allocated) - (self.used or 0))

    @property
    def unmeasured(self) -> int:
        """What was held and not measured."""
        return max(0, self.allocated - max(self.measured, self.used or 0))

    @property
    def free(self) -> int:
        """What could have been had."""
        return max(0, self.capacity - self.allocated - self.unavailable)


def fleet_hours(*, since: datetime, hours: int, now: datetime) -> list[FleetHour]:
    """Return so many hours of the fleet from ``since`` (a full hour), in four queries; capacity is today's."""
    begin, until = since, min(since + hours * HOUR, now)
    values = {"since": begin, "until": until}
    ((devices, began_at),) = fetch(_FLEET)
    if until <= begin:
        return [FleetHour(begin + n * HOUR, devices * 1000, is_known=False) for n in range(hours)]
    allocated: dict[datetime, float] = dict(fetch(_ALLOCATED, values))
    away: dict[datetime, float] = dict(fetch(_AWAY, values))
    used = {hour: found for hour, *found in fetch(_USED, values)}
    return [
        _hour(begin + n * HOUR, devices, allocated, away, used, began_at=began_at, now=now)
        for n in range(hours)
    ]


def _hour(
    at: datetime,
    devices: int,
    allocated: dict[datetime, float],
    away: dict[datetime, float],
    used: dict[datetime, list[Any]],
    *,
    began_at: datetime | None,
    now: datetime,
) -> FleetHour:
    seconds = min(HOUR_S, (now - at).total_seconds())
    if began_at is None or at >= now or (at + HOUR <= began_at and at not in allocated):
        return FleetHour(at, devices * 1000, is_known=False)
    in_use, measured, idle_micro = used.get(at, (None, 0.0, None))
    per_minute = 60 / seconds
    return FleetHour(
        at=at,
        capacity=devices * 1000,
        allocated=round(allocated.get(at, 0.0) / seconds),
        used=None if in_use is None else round(in_use * per_minute),
        measured=round(measured * per_minute),
        unavailable=round(away.get(at, 0.0) * 1000 / seconds),
        idle_micro=None if idle_micro is None else round(idle_micro),
    )


def allocated_now() -> int:
    """Return how many thousandths of devices are held now."""
    ((milli,),) = fetch(
        f"SELECT coalesce(sum(share_milli), 0) FROM leases_lease WHERE state IN {in_sql(LIVE_ON_NODE)}"  # noqa: S608
    )
    return int(milli)


def idle_cost_by_person(team_ids: Sequence[int], *, since: datetime) -> dict[int, tuple[int, int]]:
    """Return by user id what the unused part of their leases cost since an instant, and all that was measured.

    In micro-units, of leases that began at most 40 days before; what was not measured is in neither.
    """
    rows = fetch(_WASTE, {"teams": list(team_ids), "since": since})
    return {user: (round(idle), round(measured)) for user, idle, measured in rows}


def known(hours: Sequence[FleetHour]) -> list[FleetHour]:
    """Return the hours of which something is known."""
    return [hour for hour in hours if hour.is_known]
