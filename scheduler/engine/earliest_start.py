"""The earliest start of a claim: when, and where, it would have room for its whole time.

A start is possible where everything still held then, and every block that the claim's time would run
into, leaves room. That changes only when something ends, and where a block begins so late that the claim
is just over: only these instants are looked at, and at each only the nodes where something changed. Live
placements that are past their end are being cleaned; a short while is assumed for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from scheduler.engine.blocks import Block, fill_beside
from scheduler.engine.board import Board
from scheduler.engine.capacity import claims_on
from scheduler.engine.gang_capacity import lightest, parts_now
from scheduler.engine.host import Host
from scheduler.engine.model import Held
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.place.fill import Spot, cheapest, node_room
from scheduler.engine.shape import Shape
from scheduler.engine.sleeping_nodes import ASLEEP

# A placement past its end is being cleaned; nobody knows how long, so a short while is assumed.
OVERDUE_S = 30
CLOSED = "maintenance"
AWAY = (CLOSED, ASLEEP)
# ``NodeInfo.blocked`` of a node whose agent is not heard, now or yet: what it can do later is not known.
SILENT = ("never", "stale", "offline")
# ``DeviceInfo.blocked`` while nothing new may start on it for a while: nobody knows for how long.
PAUSED = "paused"

Opening = tuple[datetime, list[Spot] | None]


def comes_back(board: Board) -> bool:
    """Whether the board's node is away for a known time only: its maintenance ends, or it can be woken."""
    return board.blocked in AWAY and not board.device.blocked


def is_undecided(board: Board) -> bool:
    """Whether nothing but the silence of its node's agent, or a pause, keeps the board from taking something later."""
    is_quiet = board.node.blocked in SILENT
    if board.device.blocked == PAUSED:
        return is_quiet or board.node.blocked in ("", *AWAY)
    return is_quiet and not board.device.blocked


class StartSearch:
    """One claim's shape and duration, and the boards that could serve it, moved from start to start.

    ``room`` says what is held from now on and is not changed; ``blocks`` what begins later. ``with_undecided``
    counts on boards that are silent or paused, as if that were over.
    """

    def __init__(
        self,
        room: Occupancy,
        blocks: Iterable[Block],
        shape: Shape,
        duration_s: int,
        *,
        with_undecided: bool = False,
    ) -> None:
        self._room = room
        self._shape = shape
        self._duration = timedelta(seconds=duration_s)
        later: dict[int, list[Block]] = defaultdict(list)
        for block in blocks:
            later[block.held.device_id].append(block)
        self._later = later
        self._twins: dict[int, Board] = {}
        self._groups: dict[int, list[Board]] = defaultdict(list)
        for board in room.matching(shape.kind):
            is_back = (comes_back(board) and later.get(board.device.id)) or (
                with_undecided and is_undecided(board)
            )
            if not board.blocked or is_back:
                self._groups[board.node.id].append(board)
        self._serving = {board.device.id for group in self._groups.values() for board in group}
        self._hosts: dict[int, Host] = {}
        # CPU and memory of a node are taken by what its other boards hold, too.
        self._here: dict[int, list[Board]] = defaultdict(list)
        for board in room.boards:
            if board.node.id in self._groups:
                self._here[board.node.id].append(board)

    def earliest(self) -> tuple[datetime, list[Spot]] | None:
        """The first start after now with room for all units, and where; None when no known end makes room.

        Asked for what has no room now: on one node only what changes can help.
        """
        for at, spots in self.openings(self._room.now, is_stuck=not self._shape.is_spread):
            if spots is not None and at > self._room.now:
                return at, spots
        return None

    def at(self, starts_at: datetime) -> list[Spot] | None:
        """Where all units would have room from one instant on; None where they would not."""
        self._stand(starts_at, self._groups)
        return self._spots(self._groups)

    def units_at(self, starts: Sequence[datetime]) -> list[int]:
        """How many claims of the shape could run side by side for the whole time from each start on.

        Not for shapes that are spread over nodes. A node is looked at again only where something changed on it.
        """
        found = [0] * len(starts)
        for node_id, boards in self._groups.items():
            seen: tuple[object, ...] = ()
            units = 0
            for number, at in enumerate(starts):
                here = self._here[node_id] if self._shape.wants_host else boards
                holds = tuple((tuple(self._held_at(b, at)), tuple(self._later_at(b, at))) for b in here)
                if not number or holds != seen:
                    seen = holds
                    self._stand(at, (node_id,))
                    units = min(
                        claims_on(self._boards(node_id), self._shape), self._hosts[node_id].times(self._shape)
                    )
                found[number] += units
        return found

    def openings(
        self, since: datetime, until: datetime | None = None, *, is_stuck: bool = False
    ) -> Iterator[Opening]:
        """Every start worth looking at from ``since`` to ``until``, with where the units go or None.

        ``is_stuck`` says that no node has room at first.
        """
        touched = self._instants(since, until)
        roomy: set[int] = set()
        for at in sorted(touched):
            is_first = at == since and not is_stuck
            nodes = self._groups if is_first else touched[at]
            self._stand(at, nodes)
            for node_id in nodes:
                (roomy.add if self._has_part(node_id) else roomy.discard)(node_id)
            is_enough = len(roomy) >= max(self._shape.nodes, 1)
            yield at, self._spots(sorted(roomy)) if is_enough else None

    def _instants(self, since: datetime, until: datetime | None) -> dict[datetime, set[int]]:
        """When something changes, and on which nodes; ``since`` itself always."""
        found: dict[datetime, set[int]] = defaultdict(set)
        for node_id, boards in self._here.items():
            for board in boards:
                for one in board.held:
                    # It matters where it leaves room on a board that serves, or CPU of its node.
                    if board.device.id in self._serving or one.cpu_milli or one.host_memory_mib:
                        found[self._end_of(one)].add(node_id)
        for device_id, blocks in self._later.items():
            own = self._room.board_of.get(device_id)
            if own is None or own.node.id not in self._groups:
                continue
            for block in blocks:
                begins = block.starts_at - self._duration
                # One microsecond later the claim would run into it.
                for at in (block.held.until, begins, begins + timedelta(microseconds=1)):
                    found[at].add(own.node.id)
        kept = {at: some for at, some in found.items() if at > since and (until is None or at <= until)}
        kept[since] = set()
        return kept

    def _end_of(self, held: Held) -> datetime:
        now = self._room.now
        return held.until if held.until > now else now + timedelta(seconds=OVERDUE_S)

    def _stand(self, at: datetime, nodes: Iterable[int]) -> None:
        """Let the boards and hosts of these nodes hold what they hold throughout a claim from ``at``."""
        for node_id in nodes:
            for board in self._groups[node_id]:
                held, later = self._held_at(board, at), self._later_at(board, at)
                fill_beside(self._twin(board), held, later, self._room.policy)
            host = self._hosts[node_id] = Host(self._here[node_id][0].node)
            if self._shape.wants_host and host.is_limited:
                for board in self._here[node_id]:
                    for one in (*self._held_at(board, at), *self._later_at(board, at)):
                        host.take(one, 1)

    def _twin(self, board: Board) -> Board:
        twin = self._twins.get(board.device.id)
        if twin is None:
            twin = self._twins[board.device.id] = board.twin()
            twin.blocked = ""
        return twin

    def _boards(self, node_id: int) -> list[Board]:
        return [self._twin(board) for board in self._groups[node_id]]

    def _held_at(self, board: Board, at: datetime) -> list[Held]:
        """What the board still holds then; a host placement goes with the last of its shares."""
        left = [one for one in board.held if self._end_of(one) > at]
        if board.is_shared and board.clients and all(one.is_host for one in left):
            return []
        return left

    def _later_at(self, board: Board, at: datetime) -> list[Held]:
        ends_at = at + self._duration
        blocks = self._later.get(board.device.id, ())
        return [b.held for b in blocks if b.starts_at < ends_at and b.held.until > at]

    def _has_part(self, node_id: int) -> bool:
        shape, boards = self._shape, self._boards(node_id)
        host = self._hosts[node_id]
        if shape.is_spread:
            return bool(
                min(node_room(boards, shape), host.units(shape)) >= (shape.wanted if shape.nodes else 1)
            )
        return node_room(boards, shape) >= shape.wanted and host.has_room(shape)

    def _spots(self, nodes: Iterable[int]) -> list[Spot] | None:
        groups: list[Sequence[Board]] = [self._boards(node_id) for node_id in nodes]
        if self._shape.is_spread:
            parts = parts_now(self._shape, groups, lambda board: self._hosts[board.node.id])
            return lightest(self._shape, parts)
        return cheapest(self._shape, [g for g in groups if self._hosts[g[0].node.id].has_room(self._shape)])
