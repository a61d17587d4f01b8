"""How long placements are held: never into what is booked behind them, whatever the wish.

The database does it in one call, so that a booking that is stored at the same moment is seen too: the
exclusion constraint refuses the overlap, and the function (migration 0007) looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from portal.common.sql import execute, fetch, in_sql
from portal.leases.states import ENDING_LEASES, LeaseState


def hold_until(lease_ids: Sequence[int], until: datetime) -> datetime | None:
    """Set the end of the live placements of locked leases, but not into what is booked behind them.

    Returns the earliest end reached, None when nothing is held. A host placement reaches at least as far as
    its shares. Call inside the transaction that has locked the leases.
    """
    if not lease_ids:
        return None
    ((reached,),) = fetch("SELECT leases_hold_until(%s, %s)", [list(lease_ids), until])
    found: datetime | None = reached
    return found


def prolong(*, until: datetime, before: datetime) -> int:
    """Hold longer what would be free before ``before`` though nobody has confirmed it clean; returns how many.

    What is booked for later and what reaches up to a booking is left as it is. Safe to repeat.
    """
    return execute(
        "UPDATE leases_placement p SET period = tstzrange(lower(p.period), least(%s, leases_next_start(p)))"  # noqa: S608 (our own states)
        " WHERE p.is_live AND p.host_id IS NULL AND upper(p.period) < %s AND lower(p.period) <= %s"
        " AND coalesce(leases_next_start(p), 'infinity') > upper(p.period)"
        f" AND NOT EXISTS (SELECT 1 FROM leases_lease l WHERE l.id = p.lease_id AND l.state = '{LeaseState.BOOKED}')",
        [until, before, before],
    ) + execute(
        "UPDATE leases_placement p SET period = tstzrange(lower(p.period), upper(h.period))"  # noqa: S608 (our own states)
        " FROM leases_placement h WHERE h.id = p.host_id AND p.is_live AND upper(p.period) < %s"
        " AND lower(p.period) <= %s AND upper(h.period) > upper(p.period)"
        f" AND NOT EXISTS (SELECT 1 FROM leases_lease l WHERE l.id = p.lease_id AND l.state = '{LeaseState.BOOKED}')",
        [before, before],
    )


def give_way(device_ids: Sequence[int], at: datetime) -> int:
    """Let holds on these devices end at ``at`` where their leases end by then; returns how many.

    A hold reaches beyond its lease (time to start, time to clean). Where a booking is stored behind it that
    margin ends at the booking; if the slice is not clean by then, the booking is planned anew. Call inside
    the transaction that stores the booking.
    """
    return execute(
        "UPDATE leases_placement p SET period = tstzrange(lower(p.period), %s)"  # noqa: S608 (our own states)
        " WHERE p.device_id = ANY(%s) AND p.is_live AND p.host_id IS NULL"
        " AND lower(p.period) < %s AND upper(p.period) > %s"
        " AND NOT EXISTS (SELECT 1 FROM leases_lease l"
        "  LEFT JOIN leases_placement s ON s.lease_id = l.id AND s.host_id = p.id AND s.is_live"
        "  WHERE (l.id = p.lease_id OR s.id IS NOT NULL) AND NOT (l.not_after <= %s"
        f"   OR l.state IN {in_sql(ENDING_LEASES)}))",
        [at, list(device_ids), at, at, at],
    )
