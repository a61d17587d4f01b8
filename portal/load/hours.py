"""Hours of demand, made of the records of leases and requests, so that no page sums a year."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Max

from portal.common.sql import execute, fetch, in_sql
from portal.leases.states import LIVE_ON_NODE, RequestState
from portal.load.models import LoadHour

HOUR = timedelta(hours=1)
HOUR_S = 3600
KEEP = timedelta(days=400)
AGAIN = 3 * HOUR  # so far back steps of leases may still be written
PIECE = timedelta(days=14)  # of history in one statement
# Held from the start of a lease until its slice is clean. Waited while a request is in the queue; a booked start
# waits for its own time and not for a device, and so does a seat whose person has not come.
_PUT = f"""
WITH held AS (
  SELECT team_id, flavor_id, share_milli, starts_at AS since, coalesce(clean_at, %(until)s) AS until
    FROM (SELECT team_id, flavor_id, share_milli, starts_at, clean_at FROM leases_lease
           WHERE node_id = ANY(ARRAY(SELECT id FROM fleet_node)) AND clean_at > %(since)s AND starts_at < %(until)s
          UNION ALL
          SELECT team_id, flavor_id, share_milli, starts_at, NULL FROM leases_lease
           WHERE state IN {in_sql(LIVE_ON_NODE)} AND clean_at IS NULL) AS l),
steps AS (
  SELECT r.id, e.now AS state, e.at AS since,
         lead(e.at, 1, %(until)s) OVER (PARTITION BY r.id ORDER BY e.at, e.id) AS until
    FROM leases_leaserequest r JOIN leases_requestevent e ON e.request_id = r.id
   WHERE r.starts_at IS NULL AND NOT r.awaits_person AND r.submitted_at < %(until)s
     AND (r.state = '{RequestState.QUEUED}'
          OR EXISTS (SELECT 1 FROM leases_requestevent x WHERE x.request_id = r.id AND x.at > %(since)s))),
spans AS (
  SELECT team_id, flavor_id, share_milli, true AS is_held, since, until FROM held
  UNION ALL
  SELECT r.team_id, r.flavor_id, f.share_milli * r.count * greatest(r.nodes, 1), false, s.since, s.until
    FROM steps s JOIN leases_leaserequest r ON r.id = s.id JOIN catalog_flavor f ON f.id = r.flavor_id
   WHERE s.state = '{RequestState.QUEUED}'),
cut AS (
  SELECT team_id, flavor_id, share_milli, is_held, greatest(since, %(since)s) AS since, least(until, %(until)s) AS until
    FROM spans WHERE until > %(since)s AND since < %(until)s),
found AS (
  SELECT hour, f.device_model_id, c.team_id, c.is_held,
         c.share_milli
         * extract(epoch FROM least(c.until, hour + interval '1 hour') - greatest(c.since, hour)) AS amount
    FROM cut c JOIN catalog_flavor f ON f.id = c.flavor_id,
         generate_series(date_trunc('hour', c.since, 'UTC'), c.until, '1 hour') AS hour
   WHERE c.until > c.since)
INSERT INTO load_loadhour (at, device_model_id, team_id, held_milli_s, waited_milli_s)
SELECT hour, device_model_id, team_id, round(coalesce(sum(amount) FILTER (WHERE is_held), 0)),
       round(coalesce(sum(amount) FILTER (WHERE NOT is_held), 0))
  FROM found WHERE amount > 0 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (at, device_model_id, team_id)
DO UPDATE SET held_milli_s = excluded.held_milli_s, waited_milli_s = excluded.waited_milli_s
"""  # noqa: S608 (our own states)
_FIRST = "SELECT least((SELECT min(starts_at) FROM leases_lease), (SELECT min(submitted_at) FROM leases_leaserequest))"
# Thousandths of a device on average, held and waited for, by hour; %(model)s and %(teams)s None: all.
_SERIES = """
SELECT at, sum(held_milli_s)::float / 3600, sum(waited_milli_s)::float / 3600 FROM load_loadhour
 WHERE at >= %(since)s AND at < %(until)s AND (%(model)s::bigint IS NULL OR device_model_id = %(model)s)
   AND (%(teams)s::bigint[] IS NULL OR team_id = ANY(%(teams)s)) GROUP BY at
"""


def full_hour(at: datetime) -> datetime:
    """Return the beginning of the hour of an instant, in UTC as hours are counted."""
    return at.replace(minute=0, second=0, microsecond=0)


def roll_up_load(*, now: datetime) -> None:
    """Make the hours that are over and were not made yet, and the last three anew; the oldest first.

    Safe to repeat and in parallel: the same records give the same rows. A statement for two weeks of history each.
    """
    until = full_hour(now)
    newest = LoadHour.objects.aggregate(at=Max("at"))["at"]
    if newest is None:
        ((first,),) = fetch(_FIRST)
        if first is None:
            return
        since = full_hour(max(first, now - KEEP))
    else:
        since = min(newest, until) - AGAIN
    while since < until:
        piece = min(since + PIECE, until)
        execute(_PUT, {"since": since, "until": piece})
        since = piece
    execute("DELETE FROM load_loadhour WHERE at < %s", [now - KEEP])


def wanted_hours(
    *, since: datetime, until: datetime, model: int | None, teams: Sequence[int] | None
) -> list[tuple[float, float]]:
    """Return what was held and what was waited for, thousandths of a device by hour between two full hours."""
    values = {"since": since, "until": until, "model": model, "teams": None if teams is None else list(teams)}
    found = {at: (held, waited) for at, held, waited in fetch(_SERIES, values)}
    return [found.get(since + n * HOUR, (0.0, 0.0)) for n in range((until - since) // HOUR)]
