"""Why there is no room for a shape: too few units, no legal position, another team, blocked nodes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduler.engine.board import WHOLE_MILLI, Board, by_node
from scheduler.engine.earliest_start import PAUSED
from scheduler.engine.host import Host
from scheduler.engine.model import Held, NodeInfo, Reason
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import node_room
from scheduler.engine.shape import Shape, ShapeKind
from scheduler.engine.sleeping_nodes import ASLEEP

MOST_BLOCKERS = 3
MOST_NODES = 8


class Shortage:
    """Reasons about room as it is now; what equal kinds share is looked up once."""

    def __init__(self, room: Occupancy) -> None:
        self._room = room
        self._ends: dict[ShapeKind, dict[str, object]] = {}

    def reasons(self, shape: Shape) -> tuple[Reason, ...]:
        """Why the shape fits nowhere, the main reason first; at least one."""
        groups = self._room.groups(shape.kind)
        waking = _waking(self._room, shape)
        blocked = _blocked(self._room, shape, but_asleep=bool(waking))
        if not groups:
            return (*waking, *blocked)
        # Where boards of this very mode have room, the other team is the reason, not the lack of boards.
        return (*waking, *_kept_by_others(self._room, shape), self._short_of_room(shape), *blocked)

    def _short_of_room(self, shape: Shape) -> Reason:
        groups = self._room.groups(shape.kind)
        boards = [board for group in groups for board in group]
        rooms = [node_room(group, shape) for group in groups]
        short = self._hosts_in_the_way(shape, groups, rooms)
        if short:
            return self._short_of_host(shape, short)
        fits = max(rooms)
        ends = self._first_ends(shape.kind, boards)
        figures = {
            "wanted": shape.wanted,
            "free": sum(rooms),
            "total": sum(board.idle_units(shape) for board in boards),
            **ends,
        }
        if shape.units > 1 and fits:
            able = sum(room >= shape.wanted for room in rooms)
            nodes = {"nodes": shape.nodes, "nodes_fit": able if shape.nodes else 0}
            return Reason(
                "gang_incomplete", {"fits": fits if shape.nodes else sum(rooms), **nodes, **figures}
            )
        loose = _loose_slices(shape, boards) or _loose_shares(shape, boards)
        return Reason("fragmented", {**loose, **ends}) if loose else Reason("no_capacity", figures)

    def _hosts_in_the_way(
        self, shape: Shape, groups: Sequence[Sequence[Board]], rooms: Sequence[int]
    ) -> list[Host]:
        """Nodes with the boards but without the CPU or memory, where boards alone would be enough."""
        hosts = [self._room.host_of(group[0]) for group in groups]
        if shape.nodes == 0:
            scarce = [h for h, room in zip(hosts, rooms, strict=True) if h.units(shape) < room]
            return scarce if sum(rooms) >= shape.wanted else []
        enough = [h for h, room in zip(hosts, rooms, strict=True) if room >= shape.wanted]
        return [h for h in enough if not h.has_room(shape)] if len(enough) >= shape.nodes else []

    def _short_of_host(self, shape: Shape, hosts: Sequence[Host]) -> Reason:
        """The node nearest to what is wanted, of those that have the boards, and who holds its CPU."""
        host = max(hosts, key=lambda one: one.free_part(shape))
        takers = [board for board in self._room.boards if board.node is host.node]
        return Reason(
            "node_resources_short",
            {
                "node": host.node.name,
                "cpu_milli": shape.cpu_milli,
                "free_cpu_milli": None if host.node.cpu_milli is None else host.cpu_free,
                "host_memory_mib": shape.host_memory_mib,
                "free_memory_mib": None if host.node.memory_mib is None else host.memory_free,
                **_ends(takers, self._room.now),
            },
        )

    def _first_ends(self, kind: ShapeKind, boards: Sequence[Board]) -> dict[str, object]:
        known = self._ends.get(kind)
        if known is None:
            known = self._ends[kind] = _ends(boards, self._room.now)
        return known


def _loose_slices(shape: Shape, boards: Sequence[Board]) -> dict[str, object]:
    """The free memory slices of a MIG profile, when they are enough in sum."""
    if shape.kind.mode != "mig":
        return {}
    free = sum(b.geometry.usable(b.mask) for b in boards if b.use in ("", "mig"))
    wanted = min(b.geometry.profiles[shape.kind.profile].slices for b in boards) * shape.wanted
    return {"wanted": wanted, "free": free, "unit": "slices"} if free >= wanted else {}


def _loose_shares(shape: Shape, boards: Sequence[Board]) -> dict[str, object]:
    """The free share of boards open to this claim, when share and memory are enough in sum."""
    if not shape.is_shared:
        return {}
    hosts = [b for b in boards if b.hosts_for(shape) and b.clients < b.device.max_clients]
    share = sum(max(WHOLE_MILLI - b.share_used, 0) for b in hosts)
    memory = sum(max(b.memory_left_mib, 0) for b in hosts)
    wanted = shape.share_milli * shape.wanted
    if share < wanted or memory < shape.memory_mib * shape.wanted:
        return {}
    return {"wanted": wanted, "free": share, "unit": "share_milli"}


def _kept_by_others(room: Occupancy, shape: Shape) -> tuple[Reason, ...]:
    if not shape.is_shared or not shape.team_id:
        return ()
    anyone = shape._replace(team_id=0)
    boards = [
        board
        for group in room.groups(shape.kind)
        for board in group
        if board.use == shape.kind.mode and not board.hosts_for(shape) and board.units(anyone)
    ]
    if not boards:
        return ()
    next_end = min(_clears_at(board, room.now) for board in boards).isoformat()
    code = "mps_of_other_teams" if shape.kind.mode == "mps" else "shared_with_other_team"
    return (Reason(code, {"boards": len(boards), "next_end": next_end}),)


def _clears_at(board: Board, now: datetime) -> datetime:
    return max(max((h.until for h in board.held if not h.is_host), default=now), now)


def _waking(room: Occupancy, shape: Shape) -> tuple[Reason, ...]:
    """The sleeping nodes that make room for the shape once they are awake; none when they do not."""
    boards = [b for b in room.matching(shape.kind) if not b.blocked or _sleeps(b)]
    least = shape.wanted if shape.nodes else 1
    able: dict[NodeInfo, int] = {}
    for group in by_node(boards):
        units = min(node_room(group, shape), room.host_of(group[0]).units(shape))
        if units >= least:
            able[group[0].node] = units
    fits = len(able) >= shape.nodes if shape.nodes else sum(able.values()) >= shape.wanted
    sleeping = [node for node in able if node.blocked == ASLEEP]
    if not fits or not sleeping:
        return ()
    known = [node.wake_s for node in sleeping if node.wake_s is not None]
    ready_at = (room.now + timedelta(seconds=max(known))).isoformat() if known else None
    return (Reason("node_waking", {"nodes": [n.name for n in sleeping[:MOST_NODES]], "ready_at": ready_at}),)


def _sleeps(board: Board) -> bool:
    return board.node.blocked == ASLEEP and not board.device.blocked


def _is_paused(board: Board) -> bool:
    """Whether a pause alone holds the board: a node that sleeps would be woken for it otherwise."""
    return board.device.blocked == PAUSED and board.node.blocked in ("", ASLEEP)


def _blocked(room: Occupancy, shape: Shape, *, but_asleep: bool = False) -> tuple[Reason, ...]:
    nodes: dict[str, dict[str, object]] = {}
    boards = room.matching(shape.kind)
    stopped = [board for board in boards if _is_paused(board)]
    for board in boards:
        if _is_paused(board):
            continue
        if board.blocked and not (but_asleep and _sleeps(board)):
            row = nodes.setdefault(
                f"{board.node.name} {board.blocked}",
                {"node": board.node.name, "blocked": board.blocked, "devices": 0},
            )
            row["devices"] = int(str(row["devices"])) + 1
    others = (Reason("nodes_blocked", {"nodes": list(nodes.values())[:MOST_NODES]}),) if nodes else ()
    return (paused(stopped), *others) if stopped else others


def paused(boards: Sequence[Board]) -> Reason:
    """That nothing new may start on these boards for now, and when the last of them is looked at again."""
    names = list(dict.fromkeys(board.node.name for board in boards))
    ends = [board.device.paused_until for board in boards if board.device.paused_until is not None]
    until = max(ends).isoformat() if ends else None
    return Reason(
        "intake_paused",
        {"nodes": names[:MOST_NODES], "more": max(0, len(names) - MOST_NODES), "until": until},
    )


def _ends(boards: Sequence[Board], now: datetime) -> dict[str, object]:
    """When the first placement in the way must end, and which leases end first."""
    first: list[Held] = sorted(
        (h for board in boards for h in board.held if not h.is_host),
        key=lambda h: (h.until, h.lease_id or 0),
    )
    blockers: list[int] = []
    for held in first:
        if held.lease_id is not None and held.lease_id > 0 and held.lease_id not in blockers:
            blockers.append(held.lease_id)
        if len(blockers) == MOST_BLOCKERS:
            break
    next_end = max(first[0].until, now).isoformat() if first else None
    return {"next_end": next_end, "blockers": blockers}
