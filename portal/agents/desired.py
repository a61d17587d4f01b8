"""The whole desired state of a node, read from rows."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django.conf import settings

from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from portal.fleet.models import Node
from portal.leases.models import Lease, Placement
from portal.leases.states import WANTED_ON_NODE, LeaseState

SAFETY_S = 5  # the portal ends a lease first; the agent does it alone when the portal is silent


def desired_state(node_id: int, *, now: datetime) -> Desired:
    """Return what must exist on the node at its present revision.

    The revision is read before the leases, so that it can only be older than what is sent.
    """
    node = Node.objects.values("name", "epoch", "desired_revision").get(pk=node_id)
    leases = list(
        Lease.objects.filter(node_id=node_id, state__in=WANTED_ON_NODE)
        .select_related("team", "user", "request")
        .order_by("id")
    )
    slots: dict[int, list[DesiredSlot]] = defaultdict(list)
    rows = Placement.objects.filter(lease__in=[ls.pk for ls in leases], is_live=True).select_related("device")
    for row in rows.order_by("id"):
        assert row.lease_id is not None
        slots[row.lease_id].append(
            DesiredSlot(
                device=row.device.uuid,
                mode=row.mode,
                start=row.start,
                size=row.size,
                share_milli=row.share_milli,
                memory_mib=row.memory_mib,
                profile=row.profile,
            )
        )
    return Desired(
        node=node["name"],
        epoch=node["epoch"],
        revision=node["desired_revision"],
        leases=tuple(_lease(lease, tuple(slots[lease.pk]), now) for lease in leases if slots[lease.pk]),
    )


def _lease(lease: Lease, slots: tuple[DesiredSlot, ...], now: datetime) -> DesiredLease:
    if lease.state == LeaseState.PREPARING:
        left = lease.request.remaining_s
    else:
        left = max(0, int((lease.not_after - now).total_seconds()))
    return DesiredLease(
        lease=lease.uid,
        generation=lease.generation,
        team=lease.team.slug,
        user=lease.user.username,
        remaining_s=left + SAFETY_S,
        grace_s=settings.LEASE_GRACE_S,
        slots=slots,
        load_pattern=lease.load_pattern,
    )
