"""The boards of a room as columns, with one placement policy deciding over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from scheduler.engine.board import Board, by_node
from scheduler.engine.columns import (
    BOARD_MEMORY,
    COUNT,
    CPU,
    IDLE,
    KIND,
    MEMORY,
    MILLI,
    NO_BOARD,
    PLENTY,
    SHARE,
    TEAM,
    USE,
    WANT_FIELDS,
    WHOLE,
    Columns,
    columns,
)  # fmt: skip
from scheduler.engine.demand import Demand, FreeCapacity
from scheduler.engine.host import Host
from scheduler.engine.place import gang
from scheduler.engine.place.fill import Spot
from scheduler.engine.place.node_ratings import NOWHERE
from scheduler.engine.place.policy import Decider, PlacePolicy
from scheduler.engine.shape import Shape, ShapeKind
from scheduler.engine.suitability import penalties

USES = {"": IDLE, "exclusive": 1, "mig": 2, "mps": 3, "memlimit": 4, "timeslice": 5}
FIRST_ROWS = 16
APART = 0.1  # of an idle board: what spanning one link domain more costs


class Fleet:
    """Whole boards and shares placed over columns; whoever changes a board says so by ``refresh``.

    ``demand`` is what requests look like.
    """

    def __init__(
        self,
        boards: Sequence[Board],
        hosts: Mapping[int, Host],
        policy: PlacePolicy,
        demand: Demand,
        keep_better: float = 0.0,
        keep_empty: float = 0.0,
    ) -> None:
        self._nodes = by_node(boards)
        self._hosts = [hosts[group[0].node.id] for group in self._nodes]
        self._cell = {
            board: (row, at) for row, group in enumerate(self._nodes) for at, board in enumerate(group)
        }
        self._models = tuple(sorted({board.device.model for board in boards}))
        self._policy = policy
        self._gangs: gang.GangDecider | None = None
        self._keep_better = keep_better
        self._wants: dict[Shape, int] = {}
        self._kinds: dict[ShapeKind, int] = {}
        self._least_memory: dict[ShapeKind, int] = {}
        at = self._idle_columns()
        at.wake[:] = keep_empty * policy.board_worth
        idle = Counter(zip(at.cpu.tolist(), (at.free >= 0).sum(1).tolist(), strict=True))
        self._makes = tuple(sorted(idle.items()))
        tables = _cached_tables(policy, demand, self._models, self._makes)
        for board in boards:
            self._copy(at, board)
        at.totals[0] = int((WHOLE - at.free[at.free >= 0]).sum())
        self._churn_milli = demand.churn_milli
        self._count_over(at)
        if policy.settle is not None:
            tables = policy.settle(tables, at)
        wants = np.zeros((FIRST_ROWS, WANT_FIELDS), np.int64)
        self._decider = Decider(policy, at, wants, tables)

    def _count_over(self, at: Columns) -> None:
        """As much of the demand is over as the churn says."""
        at.totals[2] = max(int(at.totals[0]), WHOLE) * self._churn_milli // (1000 - self._churn_milli)

    def heed(self, demand: Demand) -> None:
        """Go by what requests look like by now."""
        at = self._decider.at
        self._churn_milli = demand.churn_milli
        self._count_over(at)
        tables = _cached_tables(self._policy, demand, self._models, self._makes)
        self._decider.take_tables(self._policy.settle(tables, at) if self._policy.settle else tables)

    def renew(self, changed: Iterable[Board], hosts: Mapping[int, Host]) -> None:
        """Look at another turn's hosts, and again at the boards that changed since."""
        self._hosts = [hosts[group[0].node.id] for group in self._nodes]
        self.refresh(changed)
        self._count_over(self._decider.at)

    def _idle_columns(self) -> Columns:
        known = {model: number for number, model in enumerate(self._models)}
        at = columns(
            [host.cpu_milli for host in self._hosts],
            [host.memory_mib for host in self._hosts],
            [known[group[0].device.model] for group in self._nodes],
            [len(group) for group in self._nodes],
            kinds=FIRST_ROWS,
        )
        at.serves[:] = False
        for row, group in enumerate(self._nodes):
            devices = [board.device for board in group]
            at.link[row, : len(group)] = _numbered([device.domain for device in devices])
            at.numa[row, : len(group)] = _numbered([device.numa for device in devices])
            at.switch[row, : len(group)] = _numbered([device.switch for device in devices])
            at.apart[row] = APART * self._policy.board_worth * (at.link[row].max() > 0)
        return at

    def spots(self, shape: Shape) -> list[Spot] | None:
        """Where the policy puts all units of a shape of whole boards or shares; None when nowhere."""
        if shape.is_spread:
            return self._spread(shape)
        row = self._row(shape)
        node, bits = self._decider.decide(row)
        if node == NOWHERE:
            return None
        return [(board, 0) for at, board in enumerate(self._nodes[node]) if (bits >> at) & 1]

    def node_for(self, shape: Shape) -> Sequence[Board] | None:
        """The boards of the node that the policy gives a shape that needs none of them; None when none has room."""
        node, _ = self._decider.decide(self._row(shape))
        return None if node == NOWHERE else self._nodes[node]

    def left(self) -> FreeCapacity:
        """What is left of the boards."""
        at = self._decider.at
        amounts, numbers = np.unique(at.free[at.free > 0], return_counts=True)
        free = tuple(zip(amounts.tolist(), numbers.tolist(), strict=True))
        return FreeCapacity(free, int(at.totals[0]), int(at.totals[1]))

    def _spread(self, shape: Shape) -> list[Spot] | None:
        """Where the units of a gang over several nodes go, node by node."""
        if not shape.nodes:
            together = self.spots(shape._replace(nodes=1))
            if together is not None:
                return together
        if self._gangs is None:
            nodes = [host.node for host in self._hosts]
            where = gang.places([node.rack for node in nodes], [node.zone for node in nodes])
            self._gangs = gang.GangDecider(self._decider, self._policy, where)
        row = self._row(shape)
        parts = self._gangs.equal(row, shape.nodes) if shape.nodes else self._gangs.free(row)
        return [
            (board, 0)
            for node, bits in parts
            for at, board in enumerate(self._nodes[node])
            if (bits >> at) & 1
        ] or None

    def refresh(self, boards: Iterable[Board]) -> None:
        """Look again at boards whose holders changed."""
        changed: dict[int, list[tuple[int, ...]]] = {}
        for board in boards:
            node, cell = self._cell[board]
            changed.setdefault(node, []).append((cell, *_left_on(board)))
        at = self._decider.at
        for node, rows in changed.items():
            host = self._hosts[node]
            cpu, memory = host.cpu_free, host.memory_free
            if not host.is_limited:
                cpu, memory = int(at.cpu[node]), int(at.memory[node])
            self._decider.fill_in(node, cpu, memory, np.array(rows, np.int64))

    def _copy(self, at: Columns, board: Board) -> None:
        node, cell = self._cell[board]
        host = self._hosts[node]
        if host.is_limited:
            at.cpu[node], at.memory[node] = host.cpu_free, host.memory_free
        (
            at.free[node, cell],
            at.share[node, cell],
            at.board_memory[node, cell],
            at.use[node, cell],
            at.team[node, cell],
            at.clients[node, cell],
        ) = _left_on(board)

    def _row(self, shape: Shape) -> int:
        row = self._wants.get(shape)
        if row is None:
            kind = self._kind(shape.kind)
            row = self._wants[shape] = len(self._wants)
            self._decider.room_for(len(self._wants))
            want = self._decider.wants[row]
            want[COUNT], want[KIND], want[USE] = shape.wanted, kind, USES[shape.kind.mode]
            want[CPU], want[MEMORY] = shape.cpu_milli, shape.host_memory_mib
            want[MILLI] = want[SHARE] = WHOLE if shape.wanted else 0
            if shape.is_shared:
                want[TEAM], want[BOARD_MEMORY] = shape.team_id, shape.memory_mib
                want[MILLI], want[SHARE] = self._worth(shape), shape.share_milli
        return row

    def _worth(self, shape: Shape) -> int:
        """The larger of share and memory, on the smallest board that can serve the shape."""
        least = self._least_memory.get(shape.kind)
        if least is None:
            memories = [board.device.memory_mib for board in self._cell if board.serves(shape.kind)]
            least = self._least_memory[shape.kind] = max(min(memories, default=1), 1)
        memory = -(-shape.memory_mib * WHOLE // least)
        return min(max(shape.share_milli, memory), WHOLE)

    def _kind(self, kind: ShapeKind) -> int:
        number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self._kinds)
            at = self._decider.at
            if number == len(at.serves):
                at = self._decider.at = at._replace(
                    serves=np.concatenate([at.serves, np.zeros_like(at.serves)]),
                    better=np.concatenate([at.better, np.zeros_like(at.better)]),
                )
            serving = [board for board in self._cell if not board.blocked and board.serves(kind)]
            for board in serving:
                at.serves[(number, *self._cell[board])] = True
            if self._keep_better or kind.near_zone:
                self._suit(at, number, kind, serving)
        return number

    def _suit(self, at: Columns, number: int, kind: ShapeKind, serving: Sequence[Board]) -> None:
        """Write down how well each board suits the kind, and in the last cell the best of each node."""
        at.better[number] = np.inf
        for board, cost in zip(serving, penalties(kind, serving, self._keep_better), strict=True):
            at.better[(number, *self._cell[board])] = cost * self._policy.board_worth
        at.better[number, :, -1] = at.better[number, :, :-1].min(axis=1)
        at.better[number][np.isinf(at.better[number])] = 0.0


def _left_on(board: Board) -> tuple[int, int, int, int, int, int]:
    """What is left of a board, and who may have it: free, share, board_memory, use, team and clients of its cell."""
    share = WHOLE if not board.use else max(WHOLE - board.share_used, 0) if board.is_shared else 0
    left = max(board.memory_left_mib, 0)
    tighter = min(share, left * WHOLE // max(board.memory_mib, 1))
    return (
        NO_BOARD if board.blocked else tighter if share else 0,
        share,
        min(left, board.device.memory_mib),
        USES[board.use],
        board.team_id,
        board.device.max_clients - board.clients,
    )


def _numbered(names: Sequence[str | int | None]) -> list[int]:
    """Equal names get equal numbers, from 0 in order of appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


@lru_cache(maxsize=32)
def _cached_tables(
    policy: PlacePolicy,
    demand: Demand,
    models: tuple[str, ...],
    nodes: tuple[tuple[tuple[int, int], int], ...],
) -> Any:
    """The policy's tables; equal fleets with equal demand share them, because making them takes a while."""
    kinds = [kind for kind, number in nodes for _ in range(number)]
    idle = columns([cpu for cpu, _ in kinds], [PLENTY] * len(kinds), [0] * len(kinds), [n for _, n in kinds])
    return policy.tables(demand, models, idle)
