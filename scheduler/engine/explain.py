"""Why a claim gets nothing: ordered reasons, the main one first, with the figures of the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduler.engine.board import WHOLE_MILLI, Board
from scheduler.engine.impossible import impossible
from scheduler.engine.model import Claim, Held, Reason
from scheduler.engine.place.fill import cheapest, node_room, spots_cost
from scheduler.engine.room import Room
from scheduler.engine.shape import Shape

MOST_BLOCKERS = 3
MOST_NODES = 8


@dataclass(frozen=True, slots=True)
class Behind:
    """What happened earlier in the same turn: the room it began with and who went ahead."""

    began: Room
    position: int
    granted: int


def explain(room: Room, claim: Claim, shape: Shape, behind: Behind | None = None) -> tuple[Reason, ...]:
    """Why ``room`` has nothing for the claim; never empty for a claim that was refused."""
    never = impossible(room, claim, shape)
    if never is not None:
        return (never,)
    reasons = [_quota(room, claim, shape)]
    if room.spots(shape) is None:
        reasons += _capacity(room, shape, behind)
    elif reasons == [None]:
        reasons = [_quota_of_weight(room, claim, shape)]
    return tuple(reason for reason in reasons if reason is not None)


def _quota(room: Room, claim: Claim, shape: Shape) -> Reason | None:
    wanted = room.least_cost(shape)
    return None if room.budget.allows(claim.team_id, wanted) else _short(room, claim, wanted)


def _quota_of_weight(room: Room, claim: Claim, shape: Shape) -> Reason:
    # The lightest boards are taken: what is free costs more than the headroom.
    spots = cheapest(shape, room.groups(shape.kind)) or []
    return _short(room, claim, spots_cost(spots, shape))


def _short(room: Room, claim: Claim, wanted: int) -> Reason:
    account = room.budget.tightest(claim.team_id)
    if account is None or account.ceiling is None:
        return Reason("quota_ceiling", {"wanted_milli": wanted})
    return Reason(
        "quota_ceiling",
        {
            "team": account.team_id,
            "name": account.name,
            "ceiling_milli": account.ceiling,
            "used_milli": account.used,
            "wanted_milli": wanted,
            "short_milli": account.used + wanted - account.ceiling,
        },
    )


def _capacity(room: Room, shape: Shape, behind: Behind | None) -> list[Reason | None]:
    groups = room.groups(shape.kind)
    blocked = _blocked(room, shape)
    if not groups:
        return [blocked]
    reasons: list[Reason | None] = []
    if behind is not None and behind.granted and behind.began.spots(shape) is not None:
        reasons.append(Reason("behind", {"position": behind.position, "granted": behind.granted}))
    kept = _kept_by_others(room, shape)
    main = _short_of_room(room, shape)
    # Where boards of this very mode have room, the other team is the reason, not the lack of boards.
    reasons += [kept, main] if kept else [main]
    return [*reasons, blocked]


def _short_of_room(room: Room, shape: Shape) -> Reason:
    groups = room.groups(shape.kind)
    boards = [board for group in groups for board in group]
    rooms = [node_room(group, shape) for group in groups]
    figures = {
        "wanted": shape.wanted,
        "free": sum(rooms),
        "total": sum(board.idle_units(shape) for board in boards),
        **_ends(room, boards),
    }
    fits = max(rooms)
    if shape.wanted > 1 and fits:
        return Reason("gang_incomplete", {"fits": fits, **figures})
    return _fragmented(room, shape, boards) or Reason("no_capacity", figures)


def _fragmented(room: Room, shape: Shape, boards: Sequence[Board]) -> Reason | None:
    if shape.kind.mode == "mig":
        return _fragmented_slices(room, shape, boards)
    if shape.is_shared:
        return _fragmented_shares(room, shape, boards)
    return None


def _fragmented_slices(room: Room, shape: Shape, boards: Sequence[Board]) -> Reason | None:
    open_boards = [b for b in boards if b.use in ("", "mig")]
    free = sum(b.geometry.usable(b.mask) for b in open_boards)
    wanted = min(b.geometry.profiles[shape.kind.profile].slices for b in boards) * shape.wanted
    if free < wanted:
        return None
    return Reason("fragmented", {"wanted": wanted, "free": free, "unit": "slices", **_ends(room, boards)})


def _fragmented_shares(room: Room, shape: Shape, boards: Sequence[Board]) -> Reason | None:
    hosts = [b for b in boards if b.hosts_for(shape) and b.clients < b.device.max_clients]
    share = sum(max(WHOLE_MILLI - b.share_used, 0) for b in hosts)
    memory = sum(max(b.device.memory_mib - b.memory_used, 0) for b in hosts)
    if share < shape.share_milli * shape.wanted or memory < shape.memory_mib * shape.wanted:
        return None
    wanted = shape.share_milli * shape.wanted
    return Reason(
        "fragmented", {"wanted": wanted, "free": share, "unit": "share_milli", **_ends(room, boards)}
    )


def _kept_by_others(room: Room, shape: Shape) -> Reason | None:
    if not shape.is_shared or not shape.team_id:
        return None
    anyone = shape._replace(team_id=0)
    boards = [
        board
        for group in room.groups(shape.kind)
        for board in group
        if board.use == shape.kind.mode and not board.hosts_for(shape) and board.units(anyone)
    ]
    if not boards:
        return None
    ends = [_clears_at(board, room.now) for board in boards]
    return Reason("shared_with_other_team", {"boards": len(boards), "next_end": min(ends).isoformat()})


def _clears_at(board: Board, now: datetime) -> datetime:
    return max(max((h.until for h in board.held if not h.is_host), default=now), now)


def _blocked(room: Room, shape: Shape) -> Reason | None:
    nodes: dict[str, dict[str, object]] = {}
    for board in room.matching(shape.kind):
        if board.blocked:
            row = nodes.setdefault(
                f"{board.node.name} {board.blocked}",
                {"node": board.node.name, "blocked": board.blocked, "devices": 0},
            )
            row["devices"] = int(str(row["devices"])) + 1
    return Reason("nodes_blocked", {"nodes": list(nodes.values())[:MOST_NODES]}) if nodes else None


def _ends(room: Room, boards: Sequence[Board]) -> dict[str, object]:
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
    next_end = max(first[0].until, room.now).isoformat() if first else None
    return {"next_end": next_end, "blockers": blockers}
