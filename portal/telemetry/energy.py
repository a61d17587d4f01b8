"""What sleeping saved, from the energy counters of the devices; where those are silent it is unknown.

The saving of a sleep is what the node's devices would have used idling on, at the rate measured before they fell
asleep, less what they used asleep. Only whole minutes that every device of the node measured count: what is not
measured adds nothing to either side. Host and cooling are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.common.sql import execute, fetch

# Of a minute at one sample a second, so many must be there for its energy to be the whole minute's.
LEAST_SAMPLES = 55
LEAST_MINUTES = 3
LOOK_BACK = timedelta(hours=1)
LAG = timedelta(minutes=5)  # minutes are stored a while after they end
WH_MJ = 3_600_000  # thousandths of a joule in a watt-hour

# Minutes of a node in which each of its devices measured its energy, with the sum.
_MINUTES = (
    "SELECT r.minute, sum(r.energy_mj) AS mj FROM telemetry_minuterollup r"
    " JOIN fleet_device d ON d.id = r.device_id WHERE d.node_id = %s AND r.minute >= %s"
    " AND r.minute + interval '1 minute' <= %s AND r.samples >= %s AND r.energy_mj IS NOT NULL"
    " GROUP BY r.minute HAVING count(*) = (SELECT count(*) FROM fleet_device WHERE node_id = %s)"
)
_DUE = (
    "SELECT s.id, s.node_id, s.began_at, s.ended_at, s.idle_mw, n.idle_since FROM fleet_nodesleep s"
    " JOIN fleet_node n ON n.id = s.node_id WHERE s.saved_mj IS NULL AND ((s.idle_mw IS NULL AND s.began_at > %s)"
    " OR (s.ended_at > %s AND s.ended_at <= %s)) ORDER BY s.id"
)


@dataclass(frozen=True, slots=True)
class Saving:
    """What sleeping saved in thousandths of a joule, and in how long asleep; ``saved_mj`` None is unknown."""

    sleeps: int
    asleep_s: int
    saved_mj: int | None

    @property
    def saved_wh(self) -> float | None:
        """The saving in watt-hours."""
        return None if self.saved_mj is None else self.saved_mj / WH_MJ


def settle_sleeps(*, now: datetime) -> int:
    """Store what is known by now of sleeps: the idle rate before, and the saving once its minutes are in.

    Returns how many rows it wrote. Safe to repeat; looks back a day, since minutes may come late.
    """
    day = now - timedelta(days=1)
    written = 0
    for pk, node, began_at, ended_at, idle_mw, idle_since in fetch(_DUE, [day, day, now - LAG]):
        if idle_mw is None:
            begin = max(
                began_at - LOOK_BACK, idle_since if idle_since and idle_since < began_at else began_at
            )
            idle_mw = _rate_mw(node, begin, began_at)
            if idle_mw is not None:
                written += execute("UPDATE fleet_nodesleep SET idle_mw = %s WHERE id = %s", [idle_mw, pk])
        if ended_at is not None and ended_at <= now - LAG and idle_mw is not None:
            minutes, used_mj = _used(node, began_at, ended_at)
            if minutes:
                written += execute(
                    "UPDATE fleet_nodesleep SET used_mj = %s, saved_mj = %s WHERE id = %s",
                    [used_mj, idle_mw * 60 * minutes - used_mj, pk],
                )
    return written


def saving(*, now: datetime, since: datetime, node_id: int | None = None) -> Saving:
    """Return what sleeping saved since an instant, on one node or on all; sleeps still on count up to now."""
    rows = fetch(
        "SELECT id, node_id, began_at, ended_at, idle_mw, saved_mj FROM fleet_nodesleep"
        " WHERE coalesce(ended_at, %s) > %s AND (%s::bigint IS NULL OR node_id = %s) ORDER BY id",
        [now, since, node_id, node_id],
    )
    asleep_s, known = 0, []
    for _pk, node, began_at, ended_at, idle_mw, saved_mj in rows:
        asleep_s += max(0, int(((ended_at or now) - max(began_at, since)).total_seconds()))
        if saved_mj is None and ended_at is None and idle_mw is not None:
            minutes, used_mj = _used(node, began_at, now)
            saved_mj = idle_mw * 60 * minutes - used_mj if minutes else None
        if saved_mj is not None:
            known.append(saved_mj)
    return Saving(len(rows), asleep_s, sum(known) if known else None)


def _rate_mw(node_id: int, begin: datetime, end: datetime) -> int | None:
    """Return what a node's devices drew together, from at least ``LEAST_MINUTES`` measured minutes."""
    minutes, used_mj = _used(node_id, begin, end)
    return round(used_mj / (60 * minutes)) if minutes >= LEAST_MINUTES else None


def _used(node_id: int, begin: datetime, end: datetime) -> tuple[int, int]:
    """Return how many minutes were measured and what the node's devices used in them."""
    ((minutes, used_mj),) = fetch(
        f"SELECT count(*), coalesce(sum(mj), 0)::bigint FROM ({_MINUTES}) AS minutes",  # noqa: S608 (our own SQL)
        [node_id, begin, end, LEAST_SAMPLES, node_id],
    )
    return int(minutes), int(used_mj)
