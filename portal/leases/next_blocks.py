"""What comes behind a lease on its own slots: bookings, maintenance, the longest time of its flavor or quota."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.utils.translation import gettext as _

from portal.common.moments import moment
from portal.common.sql import fetch
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.quotas.selectors import shortest_run_limit

Why = Literal["booking", "maintenance", "flavor", "quota"]
# A window that is on already begins "now" for whoever is still there; one that is over is no block. A node that
# is being drained goes into maintenance at its deadline, until it is brought back.
_BLOCKS = """
SELECT l.id, 'booking', lower(b.period), ''
  FROM leases_lease l JOIN leases_placement p ON p.lease_id = l.id AND p.is_live
  JOIN leases_placement o ON o.id = coalesce(p.host_id, p.id)
  JOIN leases_placement b ON b.device_id = o.device_id AND b.is_live AND b.host_id IS NULL
   AND b.id <> o.id AND b.slots && o.slots AND lower(b.period) > lower(o.period)
 WHERE l.id = ANY(%s)
UNION ALL
SELECT l.id, 'maintenance', w.starts_at, w.reason
  FROM leases_lease l JOIN fleet_maintenancewindow_nodes n ON n.node_id = l.node_id
  JOIN fleet_maintenancewindow w ON w.id = n.maintenancewindow_id
 WHERE l.id = ANY(%s) AND w.cancelled_at IS NULL AND w.ends_at > %s
UNION ALL
SELECT l.id, 'maintenance', n.drain_by, n.cordon_reason
  FROM leases_lease l JOIN fleet_node n ON n.id = l.node_id AND n.drain_by IS NOT NULL
 WHERE l.id = ANY(%s)
 ORDER BY 1, 3
"""


@dataclass(frozen=True, slots=True)
class NextBlock:
    """What a lease has to make way for, and when; ``note`` is the reason of a maintenance or the team of a quota."""

    why: Why
    at: datetime
    note: str = ""


def next_blocks(lease_ids: Iterable[int], *, now: datetime) -> dict[int, NextBlock]:
    """Return by lease id the first thing that comes behind it on its slots or node; one query for all."""
    ids = list(lease_ids)
    found: dict[int, NextBlock] = {}
    for lease_id, why, at, note in fetch(_BLOCKS, [ids, ids, now, ids]) if ids else ():
        found.setdefault(lease_id, NextBlock(why, at, note))
    return found


def latest_end(lease: Lease, *, now: datetime) -> NextBlock | None:
    """Return how long an active lease may run at most and what stands behind that; None when it does not run."""
    if lease.state not in (LeaseState.ACTIVE, LeaseState.INTERRUPTED) or lease.activated_at is None:
        return None
    own = NextBlock("flavor", lease.activated_at + timedelta(seconds=lease.flavor.max_duration_s))
    limit = shortest_run_limit(lease.team)
    if limit is not None and limit.most_s < lease.flavor.max_duration_s:
        own = NextBlock("quota", lease.activated_at + timedelta(seconds=limit.most_s), limit.team)
    block = next_blocks([lease.pk], now=now).get(lease.pk)
    return block if block and block.at < own.at else own


def block_sentence(block: NextBlock) -> str:
    """Return why a lease cannot run longer, as a sentence."""
    if block.why == "maintenance":
        return _("Maintenance of its node begins %(at)s: %(reason)s.") % {
            "at": moment(block.at),
            "reason": block.note or _("no reason given"),
        }
    if block.why == "booking":
        return _("Its place is booked from %(at)s on.") % {"at": moment(block.at)}
    if block.why == "quota":
        return _("The quota of %(team)s lets it run until %(at)s.") % {
            "team": block.note,
            "at": moment(block.at),
        }
    return _("Its flavor allows it until %(at)s.") % {"at": moment(block.at)}
