"""Who has what: devices of nodes, places of live leases, the tree of teams; cached per process.

Answers three questions without a query per frame: may this node say that, how large is this slice,
and who may see it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache

from django.db import DatabaseError
from django.db.models.functions import Greatest

from nodeagent.protocol.boards import all_boards
from portal.fleet.models import Device, Mode, Node
from portal.fleet.services import model_slug
from portal.leases.models import Placement
from portal.leases.states import LIVE_LEASES
from portal.teams.models import Team
from portal.telemetry.database import in_database
from portal.telemetry.frames import DeviceNow, Frame, SlotNow

log = logging.getLogger(__name__)
FRESH_S = 5.0
AT_MOST_EVERY_S = 0.5
# Of models whose limit is not on the list of boards: no device that one lease can hold draws more.
HIGHEST_LIMIT_W = 3000.0


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device of a node: row id, memory in MiB, memory slices, and the most power its model may draw."""

    id: int
    memory_mib: int
    grid: int
    limit_w: float


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: when its agent was last heard (Unix seconds) and its devices by uuid."""

    id: int
    name: str
    heard_at: float | None
    devices: dict[str, DeviceFacts]


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where one slot of a lease is."""

    device: str
    start: int
    size: int
    memory_mib: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A live lease: row id, team, node, and its places by (device uuid, start)."""

    id: int
    uid: str
    team_id: int
    node: str
    places: dict[tuple[str, int], SlotPlace]


@dataclass(frozen=True, slots=True)
class TeamFacts:
    """A team's slug and the ids from the root down to it."""

    slug: str
    lineage: tuple[int, ...]


@dataclass(frozen=True)
class Roster:
    """One reading of the rows above."""

    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    leases: dict[str, LeaseFacts] = field(default_factory=dict)
    teams: dict[int, TeamFacts] = field(default_factory=dict)

    def sees(self, held: Collection[int], team_id: int) -> bool:
        """Say whether someone with roles on these teams may see what belongs to a team."""
        team = self.teams.get(team_id)
        return team is not None and not set(held).isdisjoint(team.lineage)

    def blank_frame(self, name: str) -> Frame | None:
        """Return a node's devices and live leases with every figure unknown; None for no such node."""
        node = self.nodes.get(name)
        if node is None:
            return None
        devices = tuple(
            DeviceNow(uuid, None, None, facts.memory_mib, None, None, "")
            for uuid, facts in node.devices.items()
        )
        leases = [lease for lease in self.leases.values() if lease.node == name]
        slots = tuple(
            SlotNow(
                lease.uid, lease.team_id, p.device, p.start, p.size, p.is_whole, None, None, p.memory_mib, ""
            )
            for lease in leases
            for p in lease.places.values()
        )
        return Frame(name, node.heard_at or 0.0, "", -1, devices, slots)


@cache
def _limits() -> dict[str, float]:
    """Return limits by the short name of each board, and of each product that is one."""
    return {
        model_slug(name): one.limit_w
        for one in all_boards().values()
        if one.limit_w is not None
        for name in (*one.product_names, one.id)
    }


def power_limit_w(model: str) -> float:
    """Return the most power that a device of this model may draw, by the list of boards; what a node says is not it."""
    return _limits().get(model, HIGHEST_LIMIT_W)


def read_roster() -> Roster:
    """Read the rows: four queries, whatever the size."""
    devices: dict[int, dict[str, DeviceFacts]] = {}
    for row in Device.objects.order_by("node_id", "index").values_list(
        "node_id", "uuid", "id", "model__memory_mib", "model__grid", "model__slug"
    ):
        devices.setdefault(row[0], {})[row[1]] = DeviceFacts(*row[2:5], power_limit_w(row[5]))
    nodes = {
        name: NodeFacts(pk, name, seen.timestamp() if seen else None, devices.get(pk, {}))
        for pk, name, seen in Node.objects.order_by("name").values_list("id", "name", "last_seen_at")
    }
    teams = {
        pk: TeamFacts(slug, tuple(lineage))
        for pk, slug, lineage in Team.objects.order_by().values_list("id", "slug", "lineage")
    }
    return Roster(nodes, _read_leases(), teams)


def _read_leases() -> dict[str, LeaseFacts]:
    rows = (
        Placement.objects.filter(is_live=True, lease__state__in=LIVE_LEASES)
        .order_by("lease_id", "id")
        .values_list(
            "lease_id", "lease__uid", "lease__team_id", "lease__node__name",
            "device__uuid", "start", "size", Greatest("memory_mib", "max_memory_mib"), "mode",
        )
    )  # fmt: skip
    leases: dict[str, LeaseFacts] = {}
    for pk, uid, team, node, device, start, size, memory_mib, mode in rows:
        lease = leases.setdefault(uid, LeaseFacts(pk, uid, team, node, {}))
        lease.places[device, start] = SlotPlace(device, start, size, memory_mib, mode == Mode.EXCLUSIVE)
    return leases


class RosterKeeper:
    """Keeps the last roster and reads it again when it is old or when something in it was missing."""

    def __init__(self) -> None:
        self.roster = Roster()
        self._read_at = -1e9
        self._is_wanted = False
        self._reading: asyncio.Task[bool] | None = None

    def want(self) -> None:
        """Ask for a fresh roster soon, because something was not in this one."""
        self._is_wanted = True

    def is_due(self) -> bool:
        """Say whether it is time to read again."""
        age = time.monotonic() - self._read_at
        return age > FRESH_S or (self._is_wanted and age > AT_MOST_EVERY_S)

    async def refresh(self) -> bool:
        """Read the roster now; those who ask meanwhile share the reading. False when the database is away."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return await asyncio.shield(self._reading)

    async def ready(self) -> Roster:
        """Return the roster, reading it first when that never happened."""
        if self._read_at < 0:
            await self.refresh()
        return self.roster

    async def _read(self) -> bool:
        try:
            self.roster = await in_database(read_roster)
        except DatabaseError as error:
            log.warning("the roster could not be read: %s", error)
            return False
        self._read_at, self._is_wanted = time.monotonic(), False
        return True
