"""Who still waits as the queue is played forward: equal claims in a line, and the lines by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappush
from itertools import count

from scheduler.engine.board import Board
from scheduler.engine.model import Claim
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.shape import Shape


class Line:
    """Equal claims (same team, shape and duration) in queue order; ``head`` is the first still waiting."""

    __slots__ = ("claims", "cost", "duration_s", "head", "shape", "team_id")

    def __init__(self, claim: Claim, shape: Shape, cost: int) -> None:
        self.team_id = claim.team_id
        self.shape = shape
        self.duration_s = claim.duration_s
        self.cost = cost
        self.claims: list[tuple[int, Claim]] = []
        self.head = 0

    @property
    def rank(self) -> int:
        """The rank of the first claim still waiting."""
        return self.claims[self.head][0]

    @property
    def is_over(self) -> bool:
        """Whether nobody of it waits any more."""
        return self.head == len(self.claims)


class WaitingLines:
    """The lines of a room: of each shape a heap by first ranks, whose entries are (rank, number, line)."""

    def __init__(self, room: Occupancy) -> None:
        self.room = room
        self.of: dict[Shape, list[tuple[int, int, Line]]] = defaultdict(list)
        self._line_of: dict[int, Line] = {}
        self._numbers = count()
        self._short: dict[int, list[Line]] = defaultdict(list)
        self.boards_of: dict[int, list[Board]] = defaultdict(list)
        for board in room.boards:
            self.boards_of[board.node.id].append(board)
        self._make_of: dict[Board, tuple[object, ...]] = {
            board: (board.device.model, board.device.modes, board.device.memory_mib, board.node.zone,
                    board.device.bandwidth_gbps, board.device.compute_class, id(board.geometry))
            for board in room.boards
        }  # fmt: skip
        self._shapes_on: dict[tuple[object, ...], list[Shape]] = {}

    def __contains__(self, claim: Claim) -> bool:
        """Whether the claim was ever put into a line."""
        return claim.id in self._line_of

    def __iter__(self) -> Iterator[Line]:
        """All lines in which somebody waits."""
        return (line for lines in self.of.values() for _, _, line in lines)

    def add(self, claim: Claim, shape: Shape, rank: int) -> None:
        """Let a claim of that rank wait."""
        if shape not in self.of:
            self._shapes_on.clear()
        lines = self.of[shape]
        line = next(
            (x for _, _, x in lines if x.team_id == claim.team_id and x.duration_s == claim.duration_s), None
        )
        if line is None or rank < line.claims[-1][0]:
            line = Line(claim, shape, self.room.least_cost(shape))
            heappush(lines, (rank, next(self._numbers), line))
        line.claims.append((rank, claim))
        self._line_of[claim.id] = line

    def leave(self, claim: Claim, rank: int) -> None:
        """Let a claim go that need not be the first of its line."""
        line = self._line_of[claim.id]
        line.claims.remove((rank, claim))
        left = [(one.rank, number, one) for _, number, one in self.of[line.shape] if not one.is_over]
        heapify(left)
        self.of[line.shape] = left

    def set_short(self, line: Line) -> None:
        """Remember that the line's team lacks quota for it."""
        if line not in self._short[line.team_id]:
            self._short[line.team_id].append(line)

    def with_quota_again(self) -> list[Line]:
        """The lines that lacked quota and do not any more."""
        again, budget = [], self.room.budget
        for team_id in [team_id for team_id, lines in self._short.items() if lines]:
            lines = self._short[team_id]
            headroom = budget.headroom(team_id)
            if headroom is None or headroom >= min(line.cost for line in lines):
                able = [one for one in lines if budget.allows(team_id, one.cost)]
                self._short[team_id] = [one for one in lines if one not in able]
                again += [one for one in able if not one.is_over]
        return again

    def helped(self, freed: Iterable[Board]) -> dict[Shape, None]:
        """The shapes that a freed board has room for, or where CPU comes back any board of its node."""
        helped: dict[Shape, None] = {}
        nodes: dict[int, list[Board]] = defaultdict(list)
        for board in freed:
            if not board.blocked:
                nodes[board.node.id].append(board)
        for node_id, own in nodes.items():
            host = self.room.host_of(own[0])
            boards = self.boards_of[node_id] if host.is_limited else own
            for (make, uses), some in self._alike(boards).items():
                for shape in self._asked_of(make, some[0]):
                    if shape in helped or not self.of[shape] or uses not in ("", shape.kind.mode):
                        continue
                    if shape.nodes and shape.wants_host and not host.has_room(shape):
                        continue
                    if any(board.room(shape) for board in some):
                        helped[shape] = None
        return helped

    def _alike(self, boards: Iterable[Board]) -> dict[tuple[tuple[object, ...], str], list[Board]]:
        """The open boards by what they are and what they are used for."""
        alike: dict[tuple[tuple[object, ...], str], list[Board]] = defaultdict(list)
        for board in boards:
            if board.use != "exclusive" and not board.blocked:
                alike[self._make_of[board], board.use].append(board)
        return alike

    def _asked_of(self, make: tuple[object, ...], board: Board) -> list[Shape]:
        known = self._shapes_on.get(make)
        if known is None:
            known = self._shapes_on[make] = [shape for shape in self.of if board.serves(shape.kind)]
        return known
