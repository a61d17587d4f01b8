"""The cluster as one person may see it. A page and the API draw from the same value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.sql import fetch
from portal.fleet.maintenance import nodes_in_maintenance
from portal.fleet.models import Device, DeviceModel, Layout, Mode, Node, Partition
from portal.fleet.pauses import paused_devices
from portal.fleet.selectors import ASLEEP, UNACCEPTED, blocked_why, device_blocked_why
from portal.fleet.sizes import size_names
from portal.leases.states import LeaseState
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, below, visible_teams
from portal.web.cluster.slices import SHARES, DeviceStretch, HeldPlace, SlicedDevice, TeamsInSight, cut
from portal.web.nodes.states import shown_state
from scheduler.engine.geometry import Geometry
from scheduler.engine.model import MigProfile

# What is held now, leases with their holders; what is booked for later is on the calendar. Hosts of shares have no
# lease; their team is the placement's own.
_HELD = f"""
SELECT p.device_id, p.start, p.size, p.share_milli, p.profile, p.mode, p.host_id, coalesce(l.team_id, p.team_id),
       coalesce(l.uid, ''), coalesce(l.state, ''), coalesce(nullif(u.display_name, ''), u.username, ''), l.not_after
  FROM leases_placement p LEFT JOIN leases_lease l ON l.id = p.lease_id LEFT JOIN accounts_user u ON u.id = l.user_id
 WHERE p.is_live AND p.device_id = ANY(%s)
   AND CASE WHEN p.lease_id IS NULL THEN lower(p.period) <= %s ELSE l.state <> '{LeaseState.BOOKED}' END
 ORDER BY p.device_id, p.start, p.id
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class MapDevice:
    """A device with its slots on a scale of ``grid``; ``blocked`` says that it takes nothing at all."""

    uuid: str
    index: int
    model: str
    model_slug: str
    memory_mib: int
    grid: int
    blocked: bool
    note: str
    slots: tuple[DeviceStretch, ...]

    def milli(self) -> dict[str, int]:
        """Return how many thousandths of the device are of each kind."""
        sizes: dict[str, int] = defaultdict(int)
        for slot in self.slots:
            sizes[slot.kind] += slot.size
        return {kind: size * SHARES // self.grid for kind, size in sizes.items()}


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a card of the map."""

    name: str
    state: str
    state_text: str
    url: str
    note: str
    devices: tuple[MapDevice, ...]


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything on the map, with sums in thousandths of a device."""

    nodes: tuple[NodeView, ...]

    @property
    def devices(self) -> list[MapDevice]:
        """Return all devices of all nodes."""
        return [device for node in self.nodes for device in node.devices]

    def milli(self) -> dict[str, int]:
        """Return how many thousandths of a device are of each kind, in all."""
        found: dict[str, int] = defaultdict(int)
        for device in self.devices:
            for kind, size in device.milli().items():
                found[kind] += size
        return found


def fleet_view(rights: Rights, *, now: datetime, node_name: str = "") -> FleetView:
    """Return the cluster (or one node of it) as this person may see it, in a fixed number of queries."""
    nodes = Node.objects.all()
    if node_name:
        nodes = nodes.filter(name=node_name)
    rows = list(nodes)
    viewer = viewer_of(rights)
    away = nodes_in_maintenance(now=now)
    boards = _boards(rows, now, away, is_operator=rights.is_operator)
    held = _held(boards, now)
    views: dict[int, list[MapDevice]] = defaultdict(list)
    for board in boards:
        views[board.device.node_id].append(_device(board, held.get(board.device.pk, []), viewer))
    return FleetView(tuple(_node(node, views[node.pk], now, away) for node in rows))


def narrowed(fleet: FleetView, *, model: str = "", state: str = "", only: str = "") -> FleetView:
    """Return the part of the map a filter asks for: a device model, a node state, free room or own slices."""
    nodes = []
    for node in fleet.nodes:
        if state and node.state != state:
            continue
        devices = tuple(d for d in node.devices if _asked(d, model, only))
        if devices or not (model or only):
            nodes.append(NodeView(node.name, node.state, node.state_text, node.url, node.note, devices))
    return FleetView(tuple(nodes))


def as_json(fleet: FleetView) -> dict[str, Any]:
    """Return the map as static/js/map.js and the API take it."""
    return {
        "nodes": [
            {
                "name": node.name, "state": node.state, "state_text": node.state_text, "url": node.url,
                "note": node.note, "devices": [_device_json(device) for device in node.devices],
            }
            for node in fleet.nodes
        ]
    }  # fmt: skip


def viewer_of(rights: Rights) -> TeamsInSight:
    """Return what this person may know of teams; own are those they ask for or run."""
    own = rights.teams_with((Role.RESEARCHER, Role.ADMIN))
    names = dict(visible_teams(rights).values_list("pk", "name"))
    mine = Team.objects.filter(below(own)).values_list("pk", flat=True) if own else []
    return TeamsInSight(names, frozenset(mine))


def _boards(
    nodes: Sequence[Node], now: datetime, away: Collection[int], *, is_operator: bool
) -> list[SlicedDevice]:
    ids, paused = [node.pk for node in nodes], paused_devices(now=now)
    closed = {node.pk: _why_closed(node, now, away) for node in nodes}
    devices = list(Device.objects.filter(node_id__in=ids).order_by("node_id", "index"))
    models = DeviceModel.objects.in_bulk({device.model_id for device in devices})
    for device in devices:
        device.model = models[device.model_id]
    names = size_names()
    layouts = {row.device_id: row.positions for row in Layout.objects.filter(device__node_id__in=ids)}
    foreign: dict[int, list[tuple[int, int]]] = defaultdict(list)
    strange = Partition.objects.filter(device__node_id__in=ids, lease_uid="")
    for device_id, start, size in strange.values_list("device_id", "start", "size"):
        foreign[device_id].append((start, size))
    known: dict[str, tuple[int, ...]] = {}
    boards = []
    for device in devices:
        pinned = layouts.get(device.pk)
        key = f"{device.model_id} {device.profiles} {pinned}"
        if key not in known:
            known[key] = _positions(device, pinned, names)
        positions = known[key] if Mode.MIG in device.modes else ()
        fault, why = _device_fault(device, is_operator=is_operator), closed[device.node_id]
        is_paused = not fault and device.pk in paused
        fault = _paused_text() if is_paused else fault
        boards.append(SlicedDevice(device, positions, fault, why, tuple(foreign[device.pk]), is_paused))
    return boards


def _positions(
    device: Device, pinned: list[list[Any]] | None, names: Mapping[tuple[int, str], str]
) -> tuple[int, ...]:
    """Return where slices may lie on a device, as bits; a layout may call a size by any of its names."""
    sizes = tuple(
        MigProfile(
            row["size"], row["slices"], tuple(row["starts"]), row["share_milli"], row["memory_mib"],
            row["max_instances"],
        )
        for row in device.profiles
    )  # fmt: skip
    layout = None
    if pinned is not None:
        layout = tuple((names.get((device.model_id, name), str(name)), int(start)) for name, start in pinned)
    spans = Geometry(device.model.grid, sizes, layout).spans
    return tuple({span.bits for places in spans.values() for span in places})


def _why_closed(node: Node, now: datetime, away: Collection[int]) -> str:
    why = blocked_why(node, now=now, away=away)
    if why == "maintenance":
        return _("Takes no new work: maintenance is on")
    if why == ASLEEP:
        return ""  # its room is free: whoever wants it wakes the node
    if why == "cordoned":
        return _("Takes no new work: %(reason)s") % {"reason": node.cordon_reason}
    if why == UNACCEPTED:
        return _("Takes no new work: it waits for an operator")
    return _("Takes no new work: the node is silent") if why else ""


def _device_fault(device: Device, *, is_operator: bool) -> str:
    """Return why a device takes nothing; its reason may name other teams' work, so only operators read it."""
    if not device_blocked_why(device):
        return ""
    return (device.health_reason if is_operator else "") or _blocked_text(device)


def _paused_text() -> str:
    return _("Nothing new starts here while an alert lasts")


def _note(board: SlicedDevice) -> str:
    """Return what the map writes beside a device that takes nothing; "" beside one that does."""
    if board.is_paused:
        return _paused_text()
    return _blocked_text(board.device)


def _blocked_text(device: Device) -> str:
    why = device_blocked_why(device)
    if why == UNACCEPTED:
        return _("Waits for an operator")
    return str(device.get_health_display()) if why else ""


def _held(boards: Sequence[SlicedDevice], now: datetime) -> dict[int, list[HeldPlace]]:
    """Return what is held now by device."""
    found: dict[int, list[HeldPlace]] = defaultdict(list)
    for row in fetch(_HELD, [[b.device.pk for b in boards], now]):
        found[row[0]].append(HeldPlace(*row))
    return found


def _device(board: SlicedDevice, placements: Sequence[HeldPlace], viewer: TeamsInSight) -> MapDevice:
    device = board.device
    grid, slots = cut(board, placements, viewer)
    return MapDevice(
        uuid=device.uuid,
        index=device.index,
        model=device.model.name,
        model_slug=device.model.slug,
        memory_mib=device.model.memory_mib,
        grid=grid,
        blocked=board.is_paused or bool(device_blocked_why(device)),
        note=_note(board),
        slots=tuple(slots),
    )


def _node(node: Node, devices: Sequence[MapDevice], now: datetime, away: Collection[int]) -> NodeView:
    state, text = shown_state(node, now=now, away=away)
    return NodeView(
        node.name, state, text, reverse("web:node", args=[node.name]), _inventory(devices), tuple(devices)
    )


def _inventory(devices: Sequence[MapDevice]) -> str:
    """Return e.g. ``8 × H100 80GB``."""
    if not devices:
        return _("no devices reported yet")
    models = sorted({device.model for device in devices})
    if len(models) == 1:
        return f"{len(devices)} × {models[0]}"
    return ngettext("%(n)d device", "%(n)d devices", len(devices)) % {"n": len(devices)}


def _asked(device: MapDevice, model: str, only: str) -> bool:
    if model and device.model_slug != model:
        return False
    if only == "free":
        return any(slot.kind == "free" for slot in device.slots)
    return only != "mine" or any(slot.mine for slot in device.slots)


def _device_json(device: MapDevice) -> dict[str, Any]:
    return {
        "uuid": device.uuid, "index": device.index, "model": device.model, "memory_mib": device.memory_mib,
        "grid": device.grid, "blocked": device.blocked, "note": device.note,
        "slots": [
            {
                "start": s.start, "size": s.size, "kind": s.kind, "tone": s.tone, "label": s.label,
                "title": s.title, "mine": s.mine, "lease": s.lease, "url": s.url,
            }
            for s in device.slots
        ],
    }  # fmt: skip
