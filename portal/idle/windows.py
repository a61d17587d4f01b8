"""What was measured of running leases over their last minutes, read for the judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from nodeagent.protocol.boards import UnknownBoardError, board
from portal.common.sql import fetch
from portal.gateway.tickets import WATCH_APP
from portal.idle.judging import MeasuredWindow, MinuteSample
from portal.leases.models import Lease
from portal.telemetry.processes import ProcessList, processes_of

MINUTE = timedelta(minutes=1)
LAG = timedelta(minutes=2)  # minutes are stored a while after they end
LEAST_SAMPLES = 30  # seconds of a minute that must have been measured
# Who opened a terminal, an app or SSH, or whose job began, so lately is at work though nothing computes yet.
ATTENDED_FOR = timedelta(minutes=30)
_MINUTES = """
SELECT lease_id, minute, util_mean, memory_max_mib, sm_mean, tensor_mean, bandwidth_mean, power_mean_w
  FROM telemetry_minuterollup
 WHERE minute >= %s AND minute < %s AND lease_id = ANY(%s) AND samples >= %s
"""
_BOARDS = """
SELECT p.lease_id, m.slug, sum(p.share_milli) FROM leases_placement p
  JOIN fleet_device d ON d.id = p.device_id JOIN fleet_devicemodel m ON m.id = d.model_id
 WHERE p.lease_id = ANY(%s) AND p.is_live GROUP BY 1, 2
"""
_ATTENDED = """
SELECT lease_id FROM gateway_streamticket WHERE lease_id = ANY(%s) AND used_at >= %s AND app <> %s
 UNION SELECT lease_id FROM jobs_jobattempt WHERE lease_id = ANY(%s) AND started_at >= %s
"""


def windows_of(
    leases: Sequence[Lease], minutes: Mapping[int, int], *, now: datetime
) -> dict[int, MeasuredWindow]:
    """Return by id the last ``minutes`` of each lease, read with its node; three queries and one look per node."""
    ids = [lease.pk for lease in leases]
    if not ids:
        return {}
    end = (now - LAG).replace(second=0, microsecond=0)
    measured: dict[int, dict[datetime, MinuteSample]] = {}
    begin = end - MINUTE * max(minutes[pk] for pk in ids)
    for pk, minute, *figures in fetch(_MINUTES, [begin, end, ids, LEAST_SAMPLES]):
        measured.setdefault(pk, {})[minute] = MinuteSample(*figures)
    power = _power_of(ids)
    since = now - ATTENDED_FOR
    attended = {pk for (pk,) in fetch(_ATTENDED, [ids, since, WATCH_APP, ids, since])}
    lists = {name: processes_of(name, now=now) for name in {lease.node.name for lease in leases}}
    found = {}
    for lease in leases:
        seen, wanted = measured.get(lease.pk, {}), minutes[lease.pk]
        idle_w, limit_w = power.get(lease.pk, (None, None))
        found[lease.pk] = MeasuredWindow(
            [seen.get(end - MINUTE * (wanted - n)) for n in range(wanted)],
            idle_w,
            limit_w,
            _count(lists[lease.node.name], lease.uid),
            lease.pk in attended,
        )
    return found


def _count(listed: ProcessList | None, uid: str) -> int | None:
    """Return how many processes a node lists for a lease; None is unknown."""
    return None if listed is None else len({row.pid for row in listed.rows if row.lease == uid})


def _power_of(ids: Sequence[int]) -> dict[int, tuple[float | None, float | None]]:
    """Return by lease what its parts of the boards draw unused and at most; None where a board's is not known."""
    found: dict[int, tuple[float | None, float | None]] = {}
    for pk, slug, share_milli in fetch(_BOARDS, [list(ids)]):
        try:
            known = board(slug)
        except UnknownBoardError:
            found[pk] = (None, None)
            continue
        idle_w, limit_w = found.get(pk, (0.0, 0.0))
        part = float(share_milli) / 1000
        found[pk] = (
            None if idle_w is None or known.idle_w is None else idle_w + known.idle_w * part,
            None if limit_w is None or known.limit_w is None else limit_w + known.limit_w * part,
        )
    return found
