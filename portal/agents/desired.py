"""The whole desired state of a node, read from rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.conf import settings

from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from portal.fleet.models import Node
from portal.leases.models import Lease, Placement
from portal.leases.states import WANTED_ON_NODE, LeaseState

# Read on every change of a node: rows as they are needed, not whole objects.
FIELDS = (
    "pk",
    "uid",
    "generation",
    "state",
    "not_after",
    "load_pattern",
    "team__slug",
    "user__username",
    "request__remaining_s",
)
SAFETY_S = 5  # the portal ends a lease first; the agent does it alone when the portal is silent


def desired_state(node_id: int, *, now: datetime) -> Desired:
    """Return what must exist on the node at its present revision.

    The revision is read before the leases, so that it can only be older than what is sent.
    """
    node = Node.objects.values("name", "epoch", "desired_revision").get(pk=node_id)
    rows = Lease.objects.filter(node_id=node_id, state__in=WANTED_ON_NODE).order_by("id").values(*FIELDS)
    leases = {row["pk"]: row for row in rows}
    slots = _slots(leases)
    return Desired(
        node=node["name"],
        epoch=node["epoch"],
        revision=node["desired_revision"],
        leases=tuple(_lease(row, tuple(slots[pk]), now) for pk, row in leases.items() if slots[pk]),
    )


def _slots(lease_ids: Iterable[int]) -> dict[int, list[DesiredSlot]]:
    """Return the live slots by lease."""
    slots: dict[int, list[DesiredSlot]] = defaultdict(list)
    rows = (
        Placement.objects.filter(lease__in=list(lease_ids), is_live=True)
        .order_by("id")
        .values_list(
            "lease_id", "device__uuid", "mode", "start", "size", "share_milli", "memory_mib", "profile"
        )
    )
    for lease_id, device, mode, start, size, share_milli, memory_mib, profile in rows:
        assert lease_id is not None
        slots[lease_id].append(DesiredSlot(device, mode, start, size, share_milli, memory_mib, profile))
    return slots


def _lease(row: dict[str, Any], slots: tuple[DesiredSlot, ...], now: datetime) -> DesiredLease:
    if row["state"] == LeaseState.PREPARING:
        left = row["request__remaining_s"]
    else:
        left = max(0, int((row["not_after"] - now).total_seconds()))
    return DesiredLease(
        lease=row["uid"],
        generation=row["generation"],
        team=row["team__slug"],
        user=row["user__username"],
        remaining_s=left + SAFETY_S,
        grace_s=settings.LEASE_GRACE_S,
        slots=slots,
        load_pattern=row["load_pattern"],
    )
