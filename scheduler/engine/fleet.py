"""The boards of a room as columns, with one placement policy deciding over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import lru_cache
from typing import Any, Self

import numpy as np

from scheduler.engine.board import Board, by_node
from scheduler.engine.columns import (
    BOARD_MEMORY,
    COUNT,
    CPU,
    IDLE,
    KIND,
    LENGTH,
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
    Ints,
    columns,
)  # fmt: skip
from scheduler.engine.demand import Demand, FreeCapacity
from scheduler.engine.host import Host
from scheduler.engine.place import gang
from scheduler.engine.place.fill import Spot
from scheduler.engine.place.node_ratings import NOWHERE
from scheduler.engine.place.policy import NO_CHANGE, Decider, PlacePolicy
from scheduler.engine.shape import Shape, ShapeKind
from scheduler.engine.suitability import penalties

USES = {"": IDLE, "exclusive": 1, "mig": 2, "mps": 3, "memlimit": 4, "timeslice": 5}
FIRST_ROWS = 16
APART = 0.1  # of an idle board: what spanning one link domain more costs


class Fleet:
    """Whole boards and shares placed over columns; whoever changes a board says so by ``refresh``.

    ``demand`` is what requests look like. ``long`` are the devices whose holders will run long: whoever changes it
    says so by ``refresh``, too.
    """

    def __init__(
        self,
        boards: Sequence[Board],
        hosts: Mapping[int, Host],
        policy: PlacePolicy,
        demand: Demand,
        keep_better: float = 0.0,
        keep_empty: float = 0.0,
        keep_apart: float = 0.0,
        long: AbstractSet[int] = frozenset(),
    ) -> None:
        self._long = long
        self._seat(boards, hosts)
        self._models = tuple(sorted({board.device.model for board in boards}))
        self._policy = policy
        self._gangs: gang.GangDecider | None = None
        self._keep_better = keep_better
        self._wants: dict[tuple[Shape, int], int] = {}
        self._kinds: dict[ShapeKind, int] = {}
        self._least_memory: dict[ShapeKind, int] = {}
        at = self._idle_columns()
        at.wake[:] = keep_empty * policy.board_worth
        at.apart_long[:] = keep_apart * policy.board_worth
        idle = Counter(zip(at.cpu.tolist(), (at.free >= 0).sum(1).tolist(), strict=True))
        self._makes = tuple(sorted(idle.items()))
        tables = _cached_tables(policy, demand, self._models, self._makes)
        for board in boards:
            self._copy(at, board)
        at.totals[0] = int((WHOLE - at.free[at.free >= 0]).sum())
        self._demand = demand
        self._count_over(at)
        if policy.settle is not None:
            tables = policy.settle(tables, at)
        self._changed: dict[Board, None] = {}
        self._is_to_count = False
        wants = np.zeros((FIRST_ROWS, WANT_FIELDS), np.int64)
        self._decider = Decider(policy, at, wants, tables)

    def _seat(self, boards: Sequence[Board], hosts: Mapping[int, Host]) -> None:
        """Give each board its cell."""
        self._nodes = by_node(boards)
        self._hosts = [hosts[group[0].node.id] for group in self._nodes]
        self._cell = {
            board: (row, at) for row, group in enumerate(self._nodes) for at, board in enumerate(group)
        }

    def twin(self, boards: Sequence[Board], hosts: Mapping[int, Host]) -> Self:
        """The same over other boards and hosts in the same order, which hold the same: rated once for both.

        How much of the demand is over is counted when it is first asked, as a fleet made anew would.
        """
        other = copy(self)
        other._seat(boards, hosts)
        other._gangs = None
        other._wants, other._kinds, other._changed = dict(self._wants), dict(self._kinds), {}
        other._decider = self._catch_up().twin()
        other._is_to_count = bool(self._demand.churn_milli)
        return other

    def _count_over(self, at: Columns) -> None:
        """As much of the demand is over as the churn says."""
        churn_milli = self._demand.churn_milli
        at.totals[2] = max(int(at.totals[0]), WHOLE) * churn_milli // (1000 - churn_milli)

    def heed(self, demand: Demand) -> None:
        """Go by what requests look like by now."""
        self._catch_up()
        self._demand = demand
        self._settle()

    def _settle(self) -> None:
        """Count how much of the demand is over, and rate everything anew by it."""
        at = self._decider.at
        self._count_over(at)
        tables = _cached_tables(self._policy, self._demand, self._models, self._makes)
        self._decider.take_tables(self._policy.settle(tables, at) if self._policy.settle else tables)

    def renew(self, changed: Iterable[Board], hosts: Mapping[int, Host]) -> None:
        """Look at another turn's hosts, and again at the boards that changed since."""
        self._hosts = [hosts[group[0].node.id] for group in self._nodes]
        self.refresh(changed)
        self._count_over(self._catch_up().at)

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

    def spots(self, shape: Shape, length: int = 0) -> list[Spot] | None:
        """Where the policy puts all units of a shape of whole boards or shares; None when nowhere.

        ``length``: 1 for what will run long, -1 for what is short, 0 where it does not matter.
        """
        if shape.is_spread:
            return self._spread(shape, length)
        row = self._row(shape, length)
        node, bits = self._decider.decide(row, self._changes())
        if node == NOWHERE:
            return None
        return [(board, 0) for at, board in enumerate(self._nodes[node]) if (bits >> at) & 1]

    def costs(self, shape: Shape, length: int = 0) -> dict[int, float]:
        """What the policy says that the shape costs on each node, by the node's id; infinite where it has no room."""
        row = self._row(shape, length)
        self._decider.decide(row, self._changes())
        found = self._decider.costs(row).tolist()
        return {group[0].node.id: cost for group, cost in zip(self._nodes, found, strict=True)}

    def node_for(self, shape: Shape) -> Sequence[Board] | None:
        """The boards of the node that the policy gives a shape that needs none of them; None when none has room."""
        row = self._row(shape)
        node, _ = self._decider.decide(row, self._changes())
        return None if node == NOWHERE else self._nodes[node]

    def left(self) -> FreeCapacity:
        """What is left of the boards."""
        at = self._catch_up().at
        amounts, numbers = np.unique(at.free[at.free > 0], return_counts=True)
        free = tuple(zip(amounts.tolist(), numbers.tolist(), strict=True))
        return FreeCapacity(free, int(at.totals[0]), int(at.totals[1]))

    def _spread(self, shape: Shape, length: int) -> list[Spot] | None:
        """Where the units of a gang over several nodes go, node by node."""
        if not shape.nodes:
            together = self.spots(shape._replace(nodes=1), length)
            if together is not None:
                return together
        if self._gangs is None:
            nodes = [host.node for host in self._hosts]
            where = gang.places([node.rack for node in nodes], [node.zone for node in nodes])
            self._gangs = gang.GangDecider(self._decider, self._policy, where)
        row = self._row(shape, length)
        self._catch_up()
        parts = self._gangs.equal(row, shape.nodes) if shape.nodes else self._gangs.free(row)
        return [
            (board, 0)
            for node, bits in parts
            for at, board in enumerate(self._nodes[node])
            if (bits >> at) & 1
        ] or None

    def refresh(self, boards: Iterable[Board]) -> None:
        """Look at boards again whose holders changed, when next asked for a place."""
        self._changed.update(dict.fromkeys(boards))

    def _changes(self) -> Ints:
        """What changed since the last look, as ``node_ratings.fill_in`` writes it down."""
        if self._is_to_count:
            self._is_to_count = False
            self._catch_up()
            self._settle()
        if not self._changed:
            return NO_CHANGE
        at, rows = self._decider.at, []
        for board in sorted(self._changed, key=self._cell.__getitem__):
            node, cell = self._cell[board]
            host = self._hosts[node]
            cpu, memory = host.cpu_free, host.memory_free
            if not host.is_limited:
                cpu, memory = int(at.cpu[node]), int(at.memory[node])
            rows.append((node, cpu, memory, cell, *_left_on(board), board.device.id in self._long))
        self._changed.clear()
        return np.array(rows, np.int64)

    def _catch_up(self) -> Decider:
        """The decider with all changes written down."""
        self._decider.fill_in(self._changes())
        return self._decider

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
        at.long[node, cell] = board.device.id in self._long

    def _row(self, shape: Shape, length: int = 0) -> int:
        row = self._wants.get((shape, length))
        if row is None:
            kind = self._kind(shape.kind)
            row = self._wants[shape, length] = len(self._wants)
            self._decider.room_for(len(self._wants))
            want = self._decider.wants[row]
            want[COUNT], want[KIND], want[USE] = shape.wanted, kind, USES[shape.kind.mode]
            want[LENGTH] = length
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
    return policy.tables(demand, models, _idle_fleet(nodes))


@lru_cache(maxsize=8)
def _idle_fleet(nodes: tuple[tuple[tuple[int, int], int], ...]) -> Columns:
    """So many idle nodes of each amount of CPU and number of boards; nobody may change it."""
    kinds = [kind for kind, number in nodes for _ in range(number)]
    return columns([cpu for cpu, _ in kinds], [PLENTY] * len(kinds), [0] * len(kinds), [n for _, n in kinds])
