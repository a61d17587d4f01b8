"""Claims that waiting cannot help: no such device, larger than any node, above a ceiling when idle."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engine.board import WHOLE_MILLI, by_node
from scheduler.engine.gang_capacity import nodes_able, parts_idle
from scheduler.engine.host import Host
from scheduler.engine.model import Claim, Reason
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.shape import NO_WISHES, Shape, Wishes, bad_field


def malformed(claim: Claim) -> Reason | None:
    """The first figure of the claim that makes no sense, or None."""
    field = bad_field(claim)
    return Reason("malformed", {"field": field, "value": getattr(claim, field)}) if field else None


def beyond_fleet(room: Occupancy, shape: Shape) -> Reason | None:
    """Why no device or node of this fleet could ever hold the shape, or None.

    Blocked nodes count as idle ones here: they may come back.
    """
    never = _no_such_device(room, shape)
    if never is None and shape.nodes:
        never = _larger_than_any_node(room, shape)
    if never is None and shape.is_spread:
        never = _larger_than_fleet(room, shape)
    return never


def _no_such_device(room: Occupancy, shape: Shape) -> Reason | None:
    kind = shape.kind
    if room.matching(kind):
        return None
    wishes = kind.wishes or NO_WISHES
    able = [b for b in room.boards if kind.mode in b.device.modes]
    wanted = [b for b in able if not kind.models or b.device.model in kind.models]
    nearest = {
        "models": sorted({b.device.model for b in able}),
        "profiles": sorted({name for b in wanted for name, spans in b.geometry.spans.items() if spans}),
    }
    return Reason(
        "no_such_device",
        {
            "mode": kind.mode,
            "models": sorted(kind.models),
            "profile": kind.profile,
            "least": _least(wishes),
            "zone": wishes.zone,
            "containers": wishes.needs_containers,
            "nearest": nearest,
        },
    )


def _least(wishes: Wishes) -> dict[str, int]:
    """The figures that a board must have at least, as far as they were asked for."""
    asked = {
        "memory_mib": wishes.least_memory_mib,
        "bandwidth_gbps": wishes.least_bandwidth_gbps,
        "class": wishes.least_class,
    }
    return {name: figure for name, figure in asked.items() if figure}


def _larger_than_any_node(room: Occupancy, shape: Shape) -> Reason | None:
    all_nodes = by_node(room.matching(shape.kind))
    nodes = [boards for boards in all_nodes if room.could_hold(boards, shape)]
    if not nodes:
        return _beyond_every_host(shape, [room.host_of(boards[0]) for boards in all_nodes])
    most = max(sum(board.idle_room(shape) for board in boards) for boards in nodes)
    if most >= shape.wanted:
        return None
    wanted: dict[str, int] = {"count": shape.wanted}
    nearest: dict[str, int] = {"count": most}
    if not most:
        boards = room.matching(shape.kind)
        wanted |= {"share_milli": shape.share_milli, "memory_mib": shape.memory_mib}
        nearest = {"share_milli": WHOLE_MILLI, "memory_mib": max(b.device.memory_mib for b in boards)}
    return Reason("larger_than_any_node", {"wanted": wanted, "nearest": nearest})


def _larger_than_fleet(room: Occupancy, shape: Shape) -> Reason | None:
    """A gang that has too few nodes, or boards, in the whole idle fleet."""
    parts = parts_idle(shape, by_node(room.matching(shape.kind)), room.host_of)
    if shape.nodes:
        able = nodes_able(shape, parts)
        wanted, nearest = {"nodes": shape.nodes, "count": shape.wanted}, {"nodes": able}
        return None if able >= shape.nodes else _beyond_fleet(wanted, nearest)
    units = sum(part.units for part in parts)
    return None if units >= shape.wanted else _beyond_fleet({"count": shape.wanted}, {"count": units})


def _beyond_fleet(wanted: dict[str, int], nearest: dict[str, int]) -> Reason:
    return Reason("larger_than_fleet", {"wanted": wanted, "nearest": nearest})


def _beyond_every_host(shape: Shape, hosts: Sequence[Host]) -> Reason:
    """More CPU or memory than any node has; ``nearest`` is the node that has most of what is wanted."""
    host = max(hosts, key=lambda one: one.idle_part(shape))
    wanted, nearest = {}, {}
    if shape.cpu_milli > host.cpu_milli:
        wanted["cpu_milli"], nearest["cpu_milli"] = shape.cpu_milli, host.cpu_milli
    if shape.host_memory_mib > host.memory_mib:
        wanted["host_memory_mib"], nearest["host_memory_mib"] = shape.host_memory_mib, host.memory_mib
    return Reason("larger_than_any_node", {"wanted": wanted, "nearest": nearest})


def above_quota(room: Occupancy, team_id: int, shape: Shape) -> Reason | None:
    """The lowest bound above the team that the shape alone would break, or None."""
    bound = room.budget.lowest_ceiling(team_id)
    cost = room.least_cost(shape)
    if bound is None or cost <= bound[1]:
        return None
    account, ceiling = bound
    unit = max(cost // shape.units, 1)
    return Reason(
        "above_quota",
        {
            "team": account.team_id,
            "name": account.name,
            "ceiling_milli": ceiling,
            "wanted_milli": cost,
            "nearest": {"count": max(ceiling, 0) // unit},
        },
    )
