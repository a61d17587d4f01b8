"""The whole desired state of a node, read from rows."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django.conf import settings

from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from portal.common.rows import Row, fetch
from portal.leases.states import WANTED_ON_NODE, LeaseState

# Read on every change of a node: plain rows, as far as they are needed.
LEASES = (
    "SELECT l.id, l.uid, l.generation, l.state, l.not_after, l.load_pattern,"  # noqa: S608 (our own states)
    " r.remaining_s, t.slug, u.username"
    " FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id"
    " JOIN teams_team t ON t.id = l.team_id JOIN accounts_user u ON u.id = l.user_id"
    f" WHERE l.node_id = %s AND l.state IN ({', '.join(repr(str(state)) for state in WANTED_ON_NODE)})"
    " ORDER BY l.id"
)
# On the wire a slot's memory is the limit that the driver sets.
SLOTS = (
    "SELECT p.lease_id, d.uuid, p.mode, p.start, p.size, p.share_milli,"
    " greatest(p.memory_mib, p.max_memory_mib), p.profile"
    " FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id"
    " WHERE p.lease_id = ANY(%s) AND p.is_live ORDER BY p.id"
)
SAFETY_S = 5  # the portal ends a lease first; the agent does it alone when the portal is silent


def desired_state(node_id: int, *, now: datetime) -> Desired:
    """Return what must exist on the node at its present revision.

    The revision is read before the leases, so that it can only be older than what is sent.
    """
    ((name, epoch, revision),) = fetch(
        "SELECT name, epoch, desired_revision FROM fleet_node WHERE id = %s", [node_id]
    )
    rows = fetch(LEASES, [node_id])
    slots = _slots([row[0] for row in rows])
    return Desired(
        node=name,
        epoch=epoch,
        revision=revision,
        leases=tuple(_lease(row, tuple(slots[row[0]]), now) for row in rows if slots[row[0]]),
    )


def _slots(lease_ids: list[int]) -> dict[int, list[DesiredSlot]]:
    """Return the live slots by lease."""
    slots: dict[int, list[DesiredSlot]] = defaultdict(list)
    for lease_id, *fields in fetch(SLOTS, [lease_ids]):
        slots[lease_id].append(DesiredSlot(*fields))
    return slots


def _lease(row: Row, slots: tuple[DesiredSlot, ...], now: datetime) -> DesiredLease:
    _pk, uid, generation, state, not_after, load_pattern, remaining_s, team, user = row
    if state != LeaseState.PREPARING:
        remaining_s = max(0, int((not_after - now).total_seconds()))
    return DesiredLease(
        lease=uid,
        generation=generation,
        team=team,
        user=user,
        remaining_s=remaining_s + SAFETY_S,
        grace_s=settings.LEASE_GRACE_S,
        slots=slots,
        load_pattern=load_pattern,
    )
