"""Nodes as an operator's list shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest

from portal.common.sql import fetch, in_sql
from portal.fleet.maintenance import nodes_in_maintenance
from portal.fleet.models import HealthEvent, Node
from portal.fleet.power import shown_power
from portal.leases.states import LIVE_LEASES
from portal.telemetry.processes import orphans_by_node
from portal.web.nodes.health import EventRow, event_row
from portal.web.nodes.states import driver_text, shown_state
from portal.web.power.rows import power_text

# Counted apart: joined together, devices, leases and events would multiply. With all live states named, and open
# events asked for as their index has them, what has ended is not read at all.
_LIVE = in_sql(LIVE_LEASES)
_DEVICES = (
    "SELECT node_id, count(*), count(*) FILTER (WHERE NOT is_accepted) AS waits"
    " FROM fleet_device GROUP BY node_id"
)
_LEASES = f"SELECT node_id, count(*) FROM leases_lease WHERE state IN {_LIVE} GROUP BY node_id"  # noqa: S608 (our own states)
OPEN_EVENTS = "SELECT node_id, count(*) FROM fleet_healthevent WHERE cleared_at IS NULL GROUP BY node_id"
_COUNTS = (
    "SELECT n.id, coalesce(d.count, 0), coalesce(l.count, 0), coalesce(e.count, 0), coalesce(d.waits, 0)"  # noqa: S608 (our own words)
    " FROM fleet_node n"
    f" LEFT JOIN ({_DEVICES}) d ON d.node_id = n.id LEFT JOIN ({_LEASES}) l ON l.node_id = n.id"
    f" LEFT JOIN ({OPEN_EVENTS}) e ON e.node_id = n.id"
)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ENROL_COMMAND = r"""python -m nodeagent \
  --portal {portal} \
  --node {node} \
  --state {folder} \
  --enrol-token {secret}"""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: what it is, how it is, what an operator can do about it; ``orphans`` None is unknown."""

    name: str
    state: str
    state_text: str
    is_cordoned: bool
    cordon_reason: str
    driver: str
    version: str
    seen_at: datetime | None
    devices: int
    leases: int
    open_events: int
    waits: int
    is_ahead: bool
    orphans: int | None
    is_behind: bool
    is_enrolled: bool
    power: str
    power_text: Any


def node_rows(*, now: datetime) -> list[NodeRow]:
    """Return all nodes with their counts, in one query more."""
    away = nodes_in_maintenance(now=now)
    listed = list(Node.objects.order_by("name"))
    orphans = orphans_by_node([node.name for node in listed], now=now)
    counts = {pk: tuple(found) for pk, *found in fetch(_COUNTS)}
    return [_row(node, now, away, counts.get(node.pk, (0, 0, 0, 0)), orphans[node.name]) for node in listed]


def open_events() -> list[EventRow]:
    """Return what nodes and devices complain about and nobody has cleared, the newest first."""
    rows = HealthEvent.objects.filter(cleared_at=None).select_related("device", "node")
    return [event_row(event, is_operator=True) for event in rows.order_by("-at")[:100]]


def enrol_command(request: HttpRequest, node: str, secret: str) -> str:
    """Return the command line that starts the node's agent for the first time."""
    scheme, host = "wss" if request.is_secure() else "ws", request.get_host()
    is_here = host.rpartition(":")[0] in LOOPBACK or host in LOOPBACK
    plain = "" if request.is_secure() or is_here else " \\\n  --allow-plain"
    return ENROL_COMMAND.format(
        portal=f"{scheme}://{host}{plain}", node=node, folder="/var/lib/berth-agent", secret=secret
    )


def _row(
    node: Node, now: datetime, away: frozenset[int], counts: tuple[int, ...], orphans: int | None
) -> NodeRow:
    devices, leases, events, waits = counts
    state, text = shown_state(node, now=now, away=away)
    return NodeRow(
        name=node.name,
        state=state,
        state_text=text,
        is_cordoned=node.is_cordoned,
        cordon_reason=node.cordon_reason,
        driver=driver_text(node),
        version=node.agent_version,
        seen_at=node.last_seen_at,
        devices=devices,
        leases=leases,
        open_events=events,
        waits=waits,
        is_ahead=node.ahead_at is not None,
        orphans=orphans,
        is_behind=node.observed_revision < node.desired_revision,
        is_enrolled=node.public_key is not None,
        power=shown_power(node),
        power_text=power_text(node),
    )
