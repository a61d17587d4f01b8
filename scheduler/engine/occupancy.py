"""What is taken, what is free and what may be spent: boards, quota, and what was looked up so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Self

from scheduler.engine.board import Board, by_node
from scheduler.engine.demand import UNKNOWN_DEMAND, Demand
from scheduler.engine.events import Ended, Event, Granted, held_by, in_order
from scheduler.engine.fleet import Fleet
from scheduler.engine.gang_capacity import lightest, parts_idle, parts_now
from scheduler.engine.host import Host
from scheduler.engine.length_groups import LengthGroups
from scheduler.engine.model import DeviceInfo, Grant, Held, NodeInfo, PolicyRules, Snapshot
from scheduler.engine.order.ranking import Burdened
from scheduler.engine.place.fill import Groups, Spot, cheapest, spots_cost
from scheduler.engine.place.mig import HeldPeriod
from scheduler.engine.place.policy import policy_named
from scheduler.engine.quota import Budget
from scheduler.engine.shape import Shape, ShapeKind
from scheduler.engine.suitability import tiers


class Occupancy:
    """Everything that is taken and everything that is free, as of ``now``."""

    def __init__(
        self,
        now: datetime,
        boards: Sequence[Board],
        budget: Budget,
        policy: PolicyRules,
        demand: Demand = UNKNOWN_DEMAND,
    ) -> None:
        self.now = now
        self.policy = policy
        self.budget = budget
        self.demand = demand
        self.lengths = LengthGroups()
        self.boards = tuple(boards)
        self.board_of = {board.device.id: board for board in boards}
        self.hosts = {board.node.id: Host(board.node) for board in boards}
        self._place = policy_named(policy.place)
        self._made_of: tuple[tuple[NodeInfo, ...], tuple[DeviceInfo, ...]] = (), ()
        self._fleet: Fleet | None = None
        self._matching: dict[ShapeKind, tuple[Board, ...]] = {}
        self._groups: dict[ShapeKind, tuple[tuple[Board, ...], ...]] = {}
        self._makes: dict[ShapeKind, Groups] = {}
        self._least_cost: dict[Shape, int] = {}
        # For those who look at the room turn after turn: what they found, under a name of their own.
        self.kept: dict[str, Any] = {}

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, policy: PolicyRules) -> Self:
        """The state a snapshot describes. Raises UnknownPolicy for a placement rule that does not exist."""
        boards = _boards(snapshot.nodes, snapshot.devices, policy)
        state = cls(snapshot.taken_at, boards, Budget(snapshot.quotas), policy, snapshot.demand)
        state._made_of = snapshot.nodes, snapshot.devices
        for held in in_order(snapshot.held):
            board = state.board_of.get(held.device_id)
            if board is not None:
                board.put(held)
                state.host_of(board).take(held, 1)
        return state

    def renewed(self, snapshot: Snapshot) -> bool:
        """Become the state of another snapshot of the same nodes and devices; False, and no use, if they differ.

        Only boards that hold something else than before are filled anew, so that a turn on a large fleet costs
        what changed. Whatever else was done to the room meanwhile does not matter.
        """
        if (snapshot.nodes, snapshot.devices) != self._made_of:
            return False
        self.now, self.budget, self.kept = snapshot.taken_at, Budget(snapshot.quotas), {}
        held_by_board: dict[int, list[Held]] = {device_id: [] for device_id in self.board_of}
        for held in in_order(snapshot.held):
            if held.device_id in held_by_board:
                held_by_board[held.device_id].append(held)
        changed = [board for board in self.boards if board.held != held_by_board[board.device.id]]
        for board in changed:
            board.refill(held_by_board[board.device.id])
        before = {node: (host.cpu_free, host.memory_free) for node, host in self.hosts.items()}
        self.hosts = {board.node.id: Host(board.node) for board in self.boards}
        for board in self.boards:
            for held in board.held:
                self.hosts[board.node.id].take(held, 1)
        if self._fleet is not None:
            stirred = {
                node for node, host in self.hosts.items() if (host.cpu_free, host.memory_free) != before[node]
            }
            first = {board.node.id: board for board in reversed(self.boards) if board.node.id in stirred}
            self._fleet.renew(dict.fromkeys([*changed, *first.values()]), self.hosts)
        return True

    def twin(self) -> Self:
        """Another room with the same things in it, and with the same budget: what is spent counts for both."""
        boards = [board.twin() for board in self.boards]
        other = type(self)(self.now, boards, self.budget, self.policy, self.demand)
        for mine, its in zip(self.boards, boards, strict=True):
            its.refill(mine.held)
            for held in mine.held:
                other.host_of(its).take(held, 1)
        other._least_cost = dict(self._least_cost)
        other.lengths = self.lengths
        if self._fleet is not None:
            other._fleet = self._fleet.twin(boards, other.hosts)
        return other

    def refill(self, device_ids: Iterable[int], held: Iterable[Held]) -> None:
        """Let the boards of these devices hold just what is held on them; the budget does not hear of it."""
        now: dict[int, list[Held]] = {device_id: [] for device_id in device_ids if device_id in self.board_of}
        for one in in_order(held):
            if one.device_id in now:
                now[one.device_id].append(one)
        for device_id, its in now.items():
            board = self.board_of[device_id]
            host = self.host_of(board)
            for one in board.held:
                host.take(one, -1)
            board.refill(its)
            for one in board.held:
                host.take(one, 1)
        self.look_again(self.board_of[device_id] for device_id in now)

    def apply(self, event: Event) -> None:
        """Take what was granted, or give back what ended. Unknown placements are passed over."""
        if isinstance(event, Granted):
            self.grant(event.grant, event.at, event.lease_id)
        else:
            self.end(event)

    def grant(self, grant: Grant, at: datetime, lease_id: int | None = None) -> tuple[Held, ...]:
        """Take a grant's slots and quota; the placements it now holds."""
        held = held_by(grant, at, lease_id)
        for one in held:
            board = self.board_of[one.device_id]
            board.put(one)
            self.host_of(board).take(one, 1)
        self.look_again_at(held)
        self.budget.take(grant.team_id, grant.cost_milli)
        return held

    def end(self, event: Ended) -> None:
        """Give back placements and what they cost their teams' quota."""
        for held in event.held:
            board = self.board_of.get(held.device_id)
            if board is not None and board.drop(held):
                self.host_of(board).take(held, -1)
                self.budget.take(held.team_id, -board.cost_of(held))
        self.look_again_at(event.held)

    def look_again_at(self, held: Iterable[Held]) -> None:
        """Hear that the boards of these placements are no longer what they were."""
        if self._fleet is not None:
            boards = {one.device_id: self.board_of.get(one.device_id) for one in held}
            self.look_again(board for board in boards.values() if board is not None)

    def look_again(self, boards: Iterable[Board]) -> None:
        """Hear that these boards are no longer what they were."""
        if self._fleet is not None:
            self._fleet.refresh(boards)

    def spots(self, shape: Shape, duration_s: int | None = None, length: int = 0) -> list[Spot] | None:
        """Where the placement policy would put the shape now, quota aside; None when it does not fit.

        ``length`` says to which group of the ``lengths`` it belongs.
        """
        if shape.kind.mode == "mig":
            now = self.now.timestamp()
            term = None if duration_s is None else HeldPeriod(now, now + duration_s)
            suited = tiers(shape.kind, self.roomy_groups(shape), self.policy)
            found = (self._place.slices(shape, groups, term) for groups in suited)
            return next((spots for spots in found if spots is not None), None)
        return self.fleet.spots(shape, length)

    @property
    def fleet(self) -> Fleet:
        """The boards as columns, with the placement policy over them; built when first asked."""
        if self._fleet is None:
            wishes = self.policy.keep_better, self.policy.keep_empty, self.policy.keep_apart
            self._fleet = Fleet(
                self.boards, self.hosts, self._place, self.demand, *wishes, self.lengths.long_boards
            )
        return self._fleet

    def heed(self, demand: Demand) -> None:
        """Go by what requests look like by now."""
        if demand is not self.demand and demand != self.demand:
            self.demand = demand
            if self._fleet is not None:
                self._fleet.heed(demand)

    def sort_by_length(self, snapshot: Snapshot, order: Burdened | None) -> None:
        """Tell long requests from short ones as a turn begins, where its order can."""
        if order is not None:
            changed = self.lengths.sort(snapshot, order, self.policy)
            self.look_again(self.board_of[one] for one in changed if one in self.board_of)

    def can_pay(self, team_id: int, shape: Shape) -> bool:
        """Whether the team's headroom covers the shape where it costs least."""
        return self.budget.allows(team_id, self.least_cost(shape))

    def least_cost(self, shape: Shape) -> int:
        """The cost of the shape where it would be held most cheaply if all were idle and open."""
        known = self._least_cost.get(shape)
        if known is None and shape.is_spread:
            parts = parts_idle(shape, by_node(self.matching(shape.kind)), self.host_of)
            known = self._least_cost[shape] = spots_cost(lightest(shape, parts) or [], shape)
        if known is None:
            nodes = self._one_of_each(shape.kind)
            costs = (_idle_cost(boards, shape) for boards in nodes if self.could_hold(boards, shape))
            known = min((cost for cost in costs if cost is not None), default=0)
            self._least_cost[shape] = known
        return known

    def most_cost(self, shape: Shape) -> int:
        """What the shape costs at most, wherever its units are held; an upper bound."""
        boards = (board for group in self._one_of_each(shape.kind) for board in group)
        return shape.units * max((board.unit_cost(shape) for board in boards), default=0)

    def _one_of_each(self, kind: ShapeKind) -> Groups:
        """The boards that can serve the kind, of one node of each make: idle ones are all the same."""
        known = self._makes.get(kind)
        if known is None:
            makes = {
                (self.host_of(boards[0]).size, tuple(board.make for board in boards)): boards
                for boards in by_node(self.matching(kind))
            }
            known = self._makes[kind] = list(makes.values())
        return known

    def cheapest(self, shape: Shape) -> list[Spot] | None:
        """The placement that costs the quota least now, whatever the policy says; None when nothing fits."""
        if shape.is_spread:
            return lightest(shape, parts_now(shape, self.groups(shape.kind), self.host_of))
        return cheapest(shape, self.roomy_groups(shape))

    def matching(self, kind: ShapeKind) -> tuple[Board, ...]:
        """All boards that can serve the kind, blocked ones too, in node and device order."""
        known = self._matching.get(kind)
        if known is None:
            known = self._matching[kind] = tuple(b for b in self.boards if b.serves(kind))
        return known

    def groups(self, kind: ShapeKind) -> tuple[tuple[Board, ...], ...]:
        """The open boards that can serve the kind, one tuple per node."""
        known = self._groups.get(kind)
        if known is None:
            known = self._groups[kind] = by_node(b for b in self.matching(kind) if not b.blocked)
        return known

    def host_of(self, board: Board) -> Host:
        """The node that a board sits in, with what is taken of its CPU and memory."""
        return self.hosts[board.node.id]

    def roomy_groups(self, shape: Shape) -> Groups:
        """The open boards that can serve the shape on nodes that have CPU and memory for it now."""
        groups = self.groups(shape.kind)
        if not shape.wants_host:
            return groups
        return [boards for boards in groups if self.host_of(boards[0]).has_room(shape)]

    def could_hold(self, boards: Sequence[Board], shape: Shape) -> bool:
        """Whether these boards' node has the CPU and memory when nothing is taken."""
        return not shape.wants_host or self.host_of(boards[0]).could_hold(shape)


def _idle_cost(boards: Iterable[Board], shape: Shape) -> int | None:
    need, cost = shape.wanted, 0
    for board in sorted(boards, key=lambda b: b.unit_cost(shape)):
        take = min(board.idle_room(shape), need)
        cost += take * board.unit_cost(shape)
        need -= take
    return None if need else cost


def _boards(nodes: Iterable[NodeInfo], devices: Iterable[DeviceInfo], policy: PolicyRules) -> list[Board]:
    node_of = {node.id: node for node in nodes}
    known = sorted((d for d in devices if d.node_id in node_of), key=lambda d: (d.node_id, d.index, d.id))
    factors = dict(policy.memory_factors)
    return [
        Board(device, node_of[device.node_id], rank, factors.get(device.model, 1000))
        for rank, device in enumerate(known)
    ]
