from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings

from portal.common.sql import fetch
from portal.fleet.models import Device, Health, Node

ONLINE, STALE, OFFLINE, NEVER = "online", "stale", "offline", "never"
ASLEEP = "asleep"
UNACCEPTED = "unaccepted"  # a node or device that waits for an operator


def node_state(node: Node, *, now: datetime) -> str:
    """Return how recently the agent was heard: online, stale (15 s), offline (300 s) or never."""
    if node.last_seen_at is None:
        return NEVER
    silent = now - node.last_seen_at
    if silent <= timedelta(seconds=settings.NODE_STALE_AFTER_S):
        return ONLINE
    return STALE if silent <= timedelta(seconds=settings.NODE_LOST_AFTER_S) else OFFLINE


def blocked_why(node: Node, *, now: datetime, away: Collection[int] = ()) -> str:
    """Return why nothing may be placed on the node now, or "" when something may.

    ``away`` are the ids of nodes on which maintenance is on (``maintenance.nodes_in_maintenance``).
    """
    if node.pk in away:
        return "maintenance"
    if node.is_cordoned:
        return "cordoned"
    if node.ahead_at is not None:
        return UNACCEPTED
    state = node_state(node, now=now)
    if state != ONLINE:
        return state
    return ASLEEP if ASLEEP in (node.power_desired, node.power_state) else ""


def device_blocked_why(device: Device) -> str:
    """Return why nothing may be placed on the device now, or ""."""
    return health_blocked_why(device.health, is_accepted=device.is_accepted)


def health_blocked_why(health: str, *, is_accepted: bool) -> str:
    """Return why nothing may be placed on a device of this health, or ""."""
    if health not in (Health.OK, Health.DEGRADED):
        return str(health)
    return "" if is_accepted else UNACCEPTED


def boards_by_node(device_model_id: int, mode: str) -> list[int]:
    """Return per node how many devices of a model offer a mode, healthy or not; most first."""
    rows = fetch(
        "SELECT count(*) AS n FROM fleet_device WHERE model_id = %s AND %s = ANY(modes)"
        " GROUP BY node_id ORDER BY n DESC",
        [device_model_id, mode],
    )
    return [int(n) for (n,) in rows]
