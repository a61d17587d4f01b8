"""Builders of upkeep: maintenance windows and drained nodes, and what a lease in their way looks like."""

from __future__ import annotations

from datetime import timedelta

from portal.fleet.models import MaintenanceWindow, Node
from portal.leases.draining import bring_back, drain_node
from portal.leases.maintenance import heed_windows, plan_window
from portal.leases.models import Lease
from tests.portal.builders import World

HOUR = timedelta(hours=1)
REASON = "new memory"


def plan(
    world: World,
    *,
    start: timedelta = HOUR,
    length: timedelta = HOUR,
    node: str = "gpu-01",
    reason: str = REASON,
) -> MaintenanceWindow:
    """Plan a window on one node, from ``start`` after the world's now."""
    return plan_window(
        nodes=[world.nodes[node]],
        starts_at=world.now + start,
        ends_at=world.now + start + length,
        reason=reason,
        actor=world.user("operator"),
        now=world.now,
    )


def drain(world: World, by: timedelta = HOUR, node: str = "gpu-01", reason: str = REASON) -> Node:
    """Drain a node by a deadline, ``by`` after the world's now."""
    return drain_node(
        node=world.nodes[node],
        by=world.now + by,
        reason=reason,
        actor=world.user("operator"),
        now=world.now,
    )


def back(world: World, node: str = "gpu-01") -> Node:
    """Bring a drained node back."""
    return bring_back(node=world.nodes[node], actor=world.user("operator"), now=world.now)


def assert_cut_in_an_hour(world: World, lease: Lease) -> None:
    """Bob's lease of two hours ends after one, he was told why, and a second look changes nothing."""
    lease.refresh_from_db()
    assert (lease.not_after, lease.cut_by) == (world.now + HOUR, "maintenance")
    assert lease.wanted_until == world.now + 2 * HOUR
    news = world.user("bob").notifications.get(kind="lease.cut_by_maintenance")
    assert news.facts["reason"] == REASON
    assert heed_windows(now=world.now) == 0


def assert_long_again(world: World, lease: Lease) -> None:
    """Bob's lease has its two hours again, and he was told."""
    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until, lease.cut_by) == (world.now + 2 * HOUR, None, "")
    assert world.user("bob").notifications.filter(kind="lease.longer_again").exists()
