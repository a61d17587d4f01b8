"""Where the capacity of a month went: each device's time by what it did, against the time that there was.

Everything is in thousandths of a device times seconds: a slice counts as its share of its device. Instants are floored
to their second, as usage is. Billed time is what the books say; all the rest comes from events of leases and from rows
about nodes and devices. So the difference to the capacity is zero exactly where the books have the active time of
each lease on the device, no second more or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.models import BillingPeriod
from portal.catalog.pricing import SHARE_HOUR
from portal.common.clock import whole_second
from portal.common.sql import fetch
from portal.fleet.health import CRITICAL
from portal.fleet.models import Mode
from portal.leases.states import LeaseState


class CapacityKind(models.TextChoices):
    """What a device's time went to."""

    BILLED = "billed", _("Billed")
    FREE = "free", _("Free of charge")
    RESERVED = "reserved", _("Reserved, unused")
    PREPARING = "preparing", pgettext_lazy("time of a device", "Preparing")
    CLEANING = "cleaning", pgettext_lazy("time of a device", "Cleaning")
    STRANDED = "stranded", pgettext_lazy("time of a device", "Stranded")
    IDLE = "idle", pgettext_lazy("time of a device", "Idle")
    MAINTENANCE = "maintenance", _("Maintenance")
    FAULT = "fault", pgettext_lazy("time of a device", "Fault")
    UNKNOWN = "unknown", pgettext_lazy("time of a device", "Unknown")


OF_LEASES = (
    CapacityKind.BILLED,
    CapacityKind.FREE,
    CapacityKind.RESERVED,
    CapacityKind.PREPARING,
    CapacityKind.CLEANING,
    CapacityKind.FAULT,
)
_ACTIVE = "active"  # by events, to be compared with the books
MOST_SLOTS = 63  # bits of a number; no board has more slices than 16
_RATES = """SELECT * FROM catalog_rate
  WHERE card_id = (SELECT id FROM catalog_ratecard WHERE is_default ORDER BY id LIMIT 1)"""
_KIND_OF = f"""CASE state WHEN '{LeaseState.BOOKED}' THEN '{CapacityKind.RESERVED}'
  WHEN '{LeaseState.PREPARING}' THEN '{CapacityKind.PREPARING}' WHEN '{LeaseState.ACTIVE}' THEN '{_ACTIVE}'
  WHEN '{LeaseState.ENDING}' THEN '{CapacityKind.CLEANING}' WHEN '{LeaseState.CLEANING}' THEN '{CapacityKind.CLEANING}'
  ELSE '{CapacityKind.FAULT}' END"""
# Steps of leases on devices as spans of time. A booking holds its place from its start on. Books: usage of these
# leases in the month, and active time of leases that are not metered to their end yet.
_SPANS = f"""
WITH steps AS (
  SELECT l.id AS lease_id, l.is_metered, e.now AS state,
         CASE WHEN e.now = '{LeaseState.BOOKED}' THEN greatest(e.at, l.starts_at) ELSE e.at END AS since,
         lead(e.at, 1, %(until)s::timestamptz) OVER (PARTITION BY l.id ORDER BY e.at, e.id) AS until
    FROM leases_lease l JOIN leases_leaseevent e ON e.lease_id = l.id
   WHERE l.starts_at < %(until)s AND (l.clean_at IS NULL OR l.clean_at > %(since)s)
     AND (%(device)s::bigint IS NULL OR l.id IN (SELECT lease_id FROM leases_placement WHERE device_id = %(device)s))),
spans AS (
  SELECT s.lease_id, s.is_metered, {_KIND_OF} AS kind, p.device_id, p.share_milli,
         CASE WHEN p.mode = '{Mode.MIG}' AND p.start + p.size < {MOST_SLOTS}
              THEN ((1::bigint << p.size) - 1) << p.start ELSE 0 END AS taken,
         date_trunc('second', greatest(s.since, %(since)s)) AS since,
         date_trunc('second', least(s.until, %(until)s)) AS until
    FROM steps s JOIN leases_placement p ON p.lease_id = s.lease_id
   WHERE s.state <> '{LeaseState.ENDED}' AND least(s.until, %(until)s) > greatest(s.since, %(since)s)
     AND (%(device)s::bigint IS NULL OR p.device_id = %(device)s)),
usage AS (
  SELECT u.lease_id, p.device_id, u.micro_per_hour = 0 AS is_free, u.seconds * p.share_milli AS amount
    FROM billing_usagerecord u JOIN leases_placement p ON p.lease_id = u.lease_id
   WHERE u.span && tstzrange(%(since)s, %(until)s) AND lower(u.span) >= %(since)s
     AND (%(device)s::bigint IS NULL OR p.device_id = %(device)s)),
found AS (
  SELECT device_id, lease_id, kind, is_metered, extract(epoch FROM until - since)::bigint * share_milli AS amount
    FROM spans WHERE until > since
  UNION ALL
  SELECT device_id, lease_id, CASE WHEN is_free THEN '{CapacityKind.FREE}' ELSE '{CapacityKind.BILLED}' END,
         true, amount FROM usage
  UNION ALL
  SELECT s.device_id, s.lease_id, '{CapacityKind.BILLED}', false, s.amount - coalesce(u.amount, 0) FROM (
    SELECT device_id, lease_id, sum(extract(epoch FROM until - since)::bigint * share_milli) AS amount
      FROM spans WHERE kind = '{_ACTIVE}' AND NOT is_metered GROUP BY 1, 2) s
    LEFT JOIN (SELECT device_id, lease_id, sum(amount) AS amount FROM usage GROUP BY 1, 2) u
    USING (device_id, lease_id))
"""  # noqa: S608 (our own states)
_BY_DEVICE = f"{_SPANS} SELECT device_id, kind, sum(amount)::bigint FROM found GROUP BY 1, 2"  # noqa: S608 (our own SQL)
_BY_LEASE = f"""{_SPANS} SELECT l.uid, t.name, f.kind, sum(f.amount)::bigint FROM found f
  JOIN leases_lease l ON l.id = f.lease_id JOIN teams_team t ON t.id = l.team_id
 GROUP BY 1, 2, 3 ORDER BY 1, 3"""  # noqa: S608 (our own SQL)
# What nobody held, cut where anything changes, prices too: by maintenance or a cordon, of which the audit list knows,
# then faults, then whether its node was heard or slept. What is left of a board that is cut into slices is stranded
# while no slice that its driver knows has a place among those that are taken (a bit for each).
_REST = f"""{_SPANS}, device AS (
  SELECT d.id, d.node_id, d.model_id, greatest(%(since)s, date_trunc('second', least(n.created_at, (
           SELECT min(s.since) FROM spans s WHERE s.device_id = d.id)))) AS since
    FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id),
flags AS (
  SELECT d.id, w.starts_at AS since, least(w.ends_at, w.cancelled_at) AS until, 1 AS away, 0 AS sick, 0 AS present
    FROM device d JOIN fleet_maintenancewindow_nodes m ON m.node_id = d.node_id
    JOIN fleet_maintenancewindow w ON w.id = m.maintenancewindow_id
  UNION ALL
  SELECT d.id, a.at, coalesce((SELECT min(b.at) FROM audit_auditentry b
           WHERE b.target = n.name AND b.action = 'node.uncordoned' AND b.id > a.id), %(until)s), 1, 0, 0
    FROM device d JOIN fleet_node n ON n.id = d.node_id
    JOIN audit_auditentry a ON a.target = n.name AND a.action IN ('node.cordoned', 'node.drain_asked')
  UNION ALL
  SELECT d.id, e.at, coalesce(e.cleared_at, %(until)s), 0, 1, 0 FROM device d
    JOIN fleet_healthevent e ON e.device_id = d.id OR (e.device_id IS NULL AND e.node_id = d.node_id)
   WHERE e.severity = '{CRITICAL}'
  UNION ALL
  SELECT d.id, p.began_at, p.ended_at, 0, 0, 1 FROM device d JOIN fleet_nodepresence p ON p.node_id = d.node_id
  UNION ALL
  SELECT d.id, s.began_at, coalesce(s.ended_at, %(until)s), 0, 0, 1 FROM device d
    JOIN fleet_nodesleep s ON s.node_id = d.node_id),
clipped AS (
  SELECT f.id, date_trunc('second', greatest(f.since, d.since)) AS since,
         date_trunc('second', least(f.until, %(until)s)) AS until, 0 AS held, 0 AS taken, away, sick, present
    FROM flags f JOIN device d USING (id) WHERE least(f.until, %(until)s) > greatest(f.since, d.since)
  UNION ALL
  SELECT device_id, since, until, share_milli, taken, 0, 0, 0 FROM spans
  UNION ALL
  SELECT id, since, %(until)s, 0, 0, 0, 0, 0 FROM device WHERE since < %(until)s
  UNION ALL
  SELECT d.id, date_trunc('second', lower(r.valid)), %(until)s, 0, 0, 0, 0, 0
    FROM device d JOIN ({_RATES}) r ON r.device_model_id = d.model_id
   WHERE lower(r.valid) > d.since AND lower(r.valid) < %(until)s),
turns AS (
  SELECT id, at, sum(held) AS held, sum(taken) AS taken, sum(away) AS away, sum(sick) AS sick, sum(present) AS present
    FROM (SELECT id, since AS at, held, taken, away, sick, present FROM clipped
          UNION ALL SELECT id, until, -held, -taken, -away, -sick, -present FROM clipped) edges
  GROUP BY 1, 2),
segments AS (
  SELECT t.id, d.model_id, at, extract(epoch FROM lead(at) OVER w - at)::bigint AS seconds, sum(held) OVER w AS held,
         (sum(taken) OVER w)::bigint AS taken, sum(away) OVER w AS away, sum(sick) OVER w AS sick,
         sum(present) OVER w AS present
    FROM turns t JOIN device d USING (id) WINDOW w AS (PARTITION BY t.id ORDER BY at)),
layout AS MATERIALIZED (SELECT DISTINCT model_id, taken FROM segments WHERE taken > 0),
crowded AS (
  SELECT model_id, taken FROM layout l WHERE NOT EXISTS (
    SELECT FROM fleet_profile p, unnest(p.starts) AS first
     WHERE p.device_model_id = l.model_id AND first + p.slices < {MOST_SLOTS}
       AND ((((1::bigint << p.slices) - 1) << first) & l.taken) = 0)),
judged AS (
  SELECT s.*, CASE WHEN away > 0 THEN '{CapacityKind.MAINTENANCE}' WHEN sick > 0 THEN '{CapacityKind.FAULT}'
                   WHEN present > 0 AND c.taken IS NOT NULL THEN '{CapacityKind.STRANDED}'
                   WHEN present > 0 THEN '{CapacityKind.IDLE}' ELSE '{CapacityKind.UNKNOWN}' END AS kind
    FROM segments s LEFT JOIN crowded c USING (model_id, taken) WHERE seconds > 0)
SELECT j.id, kind, sum(greatest(1000 - held, 0) * seconds)::bigint, sum(greatest(held - 1000, 0) * seconds)::bigint,
       sum(1000 * seconds)::bigint, sum(greatest(1000 - held, 0) * seconds * r.micro)::numeric / {SHARE_HOUR}
  FROM judged j LEFT JOIN LATERAL (
    SELECT micro_per_hour + micro_per_gib_hour * m.memory_mib / 1024 AS micro FROM ({_RATES}) r
      JOIN fleet_devicemodel m ON m.id = r.device_model_id
     WHERE kind = '{CapacityKind.STRANDED}' AND r.device_model_id = j.model_id AND r.valid @> j.at LIMIT 1) r ON true
 GROUP BY 1, 2
"""  # noqa: S608 (our own states)
_DEVICES = """SELECT d.id, n.name, d.index, d.uuid, m.name FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id
  JOIN fleet_devicemodel m ON m.id = d.model_id ORDER BY n.name, d.index"""


@dataclass(slots=True)
class CapacityAccount:
    """Thousandths of a device times seconds by kind, and ``capacity``, the time that there was.

    ``above`` is what leases held beyond a whole device, as shares of slices are rounded up; it was counted in their
    kinds and is taken off again. ``stranded_micro`` is what the stranded time would have cost at the price of the whole
    device, in micro-units before rounding, where it had one.
    """

    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CapacityKind.values, 0))
    above: int = 0
    capacity: int = 0
    stranded_micro: Decimal = Decimal(0)

    @property
    def difference(self) -> int:
        """Return what the kinds have too much, less than zero: too little; zero where the books are right."""
        return sum(self.kinds.values()) - self.above - self.capacity

    def add(self, other: CapacityAccount) -> None:
        """Count another account into this one."""
        for kind, amount in other.kinds.items():
            self.kinds[kind] += amount
        self.above += other.above
        self.capacity += other.capacity
        self.stranded_micro += other.stranded_micro


@dataclass(frozen=True, slots=True)
class DeviceAccount:
    """One device of a month."""

    node: str
    index: int
    uuid: str
    model: str
    account: CapacityAccount


@dataclass(frozen=True, slots=True)
class LeaseTime:
    """What a lease took of a device in a month, by kind."""

    uid: str
    team: str
    kinds: dict[str, int]


def capacity_of(period: BillingPeriod, *, now: datetime) -> list[DeviceAccount]:
    """Return where each device's time of a month went, up to now in a running one; by node and index."""
    return all_devices(capacity_by_device(period, now=now))


def capacity_by_device(period: BillingPeriod, *, now: datetime) -> dict[int, CapacityAccount]:
    """Return the same by device id, without the devices that have nothing of it: two statements."""
    values = _values(period, None, now)
    accounts: dict[int, CapacityAccount] = {}
    if values["until"] > values["since"]:
        for pk, kind, amount in fetch(_BY_DEVICE, values):
            if kind != _ACTIVE:
                accounts.setdefault(pk, CapacityAccount()).kinds[kind] += amount
        for pk, kind, amount, above, capacity, micro in fetch(_REST, values):
            account = accounts.setdefault(pk, CapacityAccount())
            account.kinds[kind] += amount
            account.above += above
            account.capacity += capacity
            account.stranded_micro += micro or 0
    return accounts


def all_devices(accounts: Mapping[int, CapacityAccount]) -> list[DeviceAccount]:
    """Return every device with its account, by node and index."""
    return [
        DeviceAccount(node, index, uuid, model, accounts.get(pk, CapacityAccount()))
        for pk, node, index, uuid, model in fetch(_DEVICES)
    ]


def lease_times(period: BillingPeriod, device_id: int, *, now: datetime) -> list[LeaseTime]:
    """Return the leases behind a device's month, by name, with what each took of it."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for uid, team, kind, amount in fetch(_BY_LEASE, _values(period, device_id, now)):
        if kind != _ACTIVE:
            kinds = found.setdefault((uid, team), {})
            kinds[kind] = kinds.get(kind, 0) + amount
    return [LeaseTime(uid, team, kinds) for (uid, team), kinds in found.items()]


def together(accounts: Iterable[CapacityAccount]) -> CapacityAccount:
    """Return accounts added up."""
    total = CapacityAccount()
    for account in accounts:
        total.add(account)
    return total


def capacity_faults(period: BillingPeriod, *, now: datetime) -> list[str]:
    """Return the devices of which a month's time does not add up, with the difference."""
    return [
        f"{one.node}/{one.index}: {one.account.difference} thousandths of a device times seconds"
        for one in capacity_of(period, now=now)
        if one.account.difference
    ]


def _values(period: BillingPeriod, device_id: int | None, now: datetime) -> dict[str, Any]:
    until = min(period.ends_at, whole_second(now))
    return {"since": period.starts_at, "until": max(until, period.starts_at), "device": device_id}
