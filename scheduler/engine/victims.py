"""Which leases make room for one claim at the least loss: asked of a room, never guessed.

What may go are units (``preemptible_units``). For a claim on one node every node is tried: its cheapest units go
until the claim fits, and those that turn out not to be needed are spared, the dearest first. A gang takes the nodes
that cost least. Where quota is short, the cheapest units that give some back go as well. A set counts only when the
room would then grant the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from scheduler.engine.board import Board
from scheduler.engine.events import held_by
from scheduler.engine.model import Claim, Grant, Held, PolicyRules, Snapshot
from scheduler.engine.order.ranking import Scored
from scheduler.engine.place.fill import node_room
from scheduler.engine.policy import Preempting
from scheduler.engine.preemptible_units import Unit, UnitKind, Units
from scheduler.engine.quota import Budget, TeamAccount
from scheduler.engine.refused_shapes import RefusedShapes
from scheduler.engine.shape import Shape
from scheduler.engine.state import EngineState, Refusal

# Bounds of the search for one claim.
MOST_NODES = 64
MOST_UNITS = 256

ELASTIC, PRIORITY, RECLAIM = "elastic", "priority", "reclaim"
Found = list[tuple[Unit, str]]


class Search:
    """Looks for victims in a room that it changes: after each ``find`` comes ``keep`` or ``forget``."""

    def __init__(
        self,
        room: EngineState,
        units: Units,
        rules: Preempting,
        promised: Iterable[tuple[int, int]] = (),
        scored: Scored | None = None,
    ) -> None:
        """``promised``: what the room counts as used by teams (team, cost) that have not started to use it."""
        self.room = room
        self._scored = scored
        self.rules = rules
        self._units = units
        self._has_cohorts = room.budget.has_cohorts
        # What found no room since somebody went: as much or more of it finds none either.
        self._refused = RefusedShapes()
        self._is_gone: set[Unit] = set()
        self._gone: dict[Unit, None] = {}  # dropped in this search, in order
        self._saved: dict[Board, list[Held]] = {}
        self._grant: Grant | None = None
        # What to undo in ``restore``: boards as they were found, and what was kept since.
        self._first: dict[Board, list[Held]] = {}
        self._granted: list[Grant] = []
        self._dropped: list[Unit] = []
        self._promised: dict[int, int] = {}  # by the team of the account that is guaranteed something
        for team_id, cost in promised:
            self._promise(team_id, cost)

    def find(self, claim: Claim, shape: Shape, score: float = 0.0) -> Found | None:
        """Who must go so that the claim fits, with why; none where it fits as it is; None where nothing helps.

        ``score`` is the claim's where scores are compared. The room is left without them.
        """
        self._gone, self._saved, self._grant = {}, {}, None
        if not shape.wanted:
            return None
        if self._fits_already(claim, shape):
            return []
        may_reclaim = self.rules.borrowed and self.room.budget.is_guaranteed(
            claim.team_id, self.room.least_cost(shape)
        )
        kinds = {kind: self._why(claim, kind, may_reclaim=may_reclaim) for kind in self._units.known.kinds}
        bound = self.rules.factor * score if self._scored else math.inf
        able = _Able(kinds, claim, bound)
        if not any(kinds.values()) and bound >= self._units.worst:
            return None
        if not self._make_room(claim, shape, able):
            return None
        found = [(unit, kinds[unit.kind] or PRIORITY) for unit in self._gone]
        if any(why == RECLAIM for _, why in found):
            cost = self._grant.cost_milli if self._grant is not None else 0
            if not self.room.budget.is_guaranteed(claim.team_id, cost):
                self.forget()
                return None
        return found

    def keep(self) -> None:
        """Let the claim have what was found: for those who come later it is taken."""
        if self._grant is not None:
            for slot in self._grant.slots:
                board = self.room.board_of[slot.device_id]
                self._first.setdefault(board, list(board.held))
            self.room.grant(self._grant, self.room.now)
            self._granted.append(self._grant)
            self._promise(self._grant.team_id, self._grant.cost_milli)
        self._is_gone |= self._gone.keys()
        self._dropped += self._gone
        if self._gone:
            self._refused = RefusedShapes()
        # What was grown is a unit of its own and goes with its base as well.
        gone = {lease.lease_id for unit in self._gone for lease in unit.leases}
        for unit in self._units.ranked if gone and self._units.known.has_extras else ():
            if any(lease.lease_id in gone for lease in unit.leases):
                self._is_gone.add(unit)
        self._gone, self._saved, self._grant = {}, {}, None

    def restore(self) -> None:
        """Leave the room as it was before the first search."""
        for grant in self._granted:
            for held in held_by(grant, self.room.now):
                self.room.host_of(self.room.board_of[held.device_id]).take(held, -1)
            self.room.budget.take(grant.team_id, -grant.cost_milli)
        for unit in self._dropped:
            self._count(unit, 1)
        for board, was in self._first.items():
            board.refill(was)
        self.room.look_again(self._first)
        self._granted, self._dropped, self._first, self._saved = [], [], {}, {}

    def forget(self) -> None:
        """Put everything back that the last search dropped."""
        self._put_back(list(self._gone))
        self._look_again()
        self._saved, self._grant = {}, None

    def _fits_already(self, claim: Claim, shape: Shape) -> bool:
        """Whether the claim would start with nobody gone for it."""
        if self._refused.covers(shape):
            return False
        answer = self.room.try_grant(claim, shape)
        if answer is Refusal.CAPACITY:
            self._refused.add(shape)
        self._grant = answer if isinstance(answer, Grant) else None
        return self._grant is not None

    def _grant_now(self, claim: Claim, shape: Shape) -> Grant | None:
        answer = self.room.try_grant(claim, shape)
        self._grant = answer if isinstance(answer, Grant) else None
        return self._grant

    def _why(self, claim: Claim, kind: UnitKind, *, may_reclaim: bool) -> str:
        """By which right the claim may take such units; "" by none."""
        if kind.is_extra:
            return ELASTIC
        if kind.is_preemptible and self.rules.preemptible and outranks(claim, kind.priority):
            return PRIORITY
        return RECLAIM if may_reclaim and self._has_borrowed(claim, kind.team_id) else ""

    def _has_borrowed(self, claim: Claim, team_id: int) -> bool:
        """Whether the team uses more than its guarantee in the claim's cohort."""
        budget = self.room.budget
        mine, its = budget.member(claim.team_id), budget.member(team_id)
        if mine is None or its is None or mine is its or mine.cohort_id != its.cohort_id:
            return False
        return self._used_now(its) > its.guaranteed

    def _able(self, able: _Able) -> Iterator[Unit]:
        """The units that a claim may take and that are still there, the cheapest first."""
        units = self._units.ranked if able.has_rights else self._units.worse_than(able.bound)
        return (unit for unit in units if unit not in self._is_gone and able.holds_for(unit))

    @cached_property
    def _on(self) -> dict[int, list[Unit]]:
        """By node, the cheapest first."""
        on: dict[int, list[Unit]] = {}
        for unit in self._units.ranked:
            for node_id in unit.on:
                on.setdefault(node_id, []).append(unit)
        return on

    def _promise(self, team_id: int, cost: int) -> None:
        its = self.room.budget.member(team_id)
        if its is not None:
            self._promised[its.team_id] = self._promised.get(its.team_id, 0) + cost

    def _used_now(self, its: TeamAccount) -> int:
        """What a member really uses, without what it will get."""
        return its.used - self._promised.get(its.team_id, 0)

    def _spares_guarantee(self, claim: Claim, unit: Unit) -> bool:
        """Whether the unit's team keeps its guarantee without it; moving inside one guarantee takes nothing."""
        if not self._has_cohorts or unit.lease.is_extra:
            return True
        its = self.room.budget.member(unit.lease.team_id)
        if its is None or its is self.room.budget.member(claim.team_id):
            return True
        return self._used_now(its) - unit.cost >= its.guaranteed

    def _make_room(self, claim: Claim, shape: Shape, able: _Able) -> bool:
        if self._refused.covers(shape) or self.room.spots(shape) is None:
            take = self._empty_nodes if shape.is_spread else self._empty_node
            if not take(claim, shape, able):
                self.forget()
                return False
        self._look_again()
        before = len(self._gone)
        self._give_back_quota(claim, shape, able)
        self._look_again()
        if self._grant_now(claim, shape) is None:
            self.forget()
            return False
        if shape.is_spread or len(self._gone) > before:
            self._spare(lambda: self._fits(claim, shape))
            return self._fits(claim, shape)
        return True

    def _fits(self, claim: Claim, shape: Shape) -> bool:
        self._look_again()
        return self._grant_now(claim, shape) is not None

    def _empty_node(self, claim: Claim, shape: Shape, able: _Able) -> bool:
        """Drop the cheapest set of units on one node that lets the shape fit there."""
        prices = self._prices(claim, shape, able)
        if not prices:
            return False
        for unit in min(prices, key=lambda price: price[:2])[2]:
            self._drop(unit)
        return True

    def _prices(
        self, claim: Claim, shape: Shape, able: _Able
    ) -> list[tuple[float, int, list[Unit], Sequence[Board]]]:
        """What clearing each node loses, how many go there, who they are, and its boards; nothing stays dropped."""
        if shape.kind.mode == "exclusive" and self._units.known.is_whole:
            return self._counted(claim, shape, able)
        prices = []
        for group, units in self._nodes(shape, able):
            if self._clear(claim, shape, group, units):
                prices.append((sum(u.loss for u in self._gone), len(self._gone), list(self._gone), group))
            self._put_back(list(self._gone))
        self._saved = {}  # as they were: nothing to look at again
        return prices

    def _counted(
        self, claim: Claim, shape: Shape, able: _Able
    ) -> list[tuple[float, int, list[Unit], Sequence[Board]]]:
        """``_prices`` for whole boards where everything that may go holds whole boards: counting is enough.

        Where boards of a node differ in kind, what is found is only likely to do.
        """
        prices: list[tuple[float, int, list[Unit], Sequence[Board]]] = []
        on: dict[int, list[Unit]] = {}
        for unit in self._able(able):
            for node_id in unit.on:
                on.setdefault(node_id, []).append(unit)
        for group in self.room.groups(shape.kind) if on else ():
            node_id = group[0].node.id
            on_node = on.get(node_id)
            if not on_node:
                continue
            host = self.room.host_of(group[0])
            boards = sum([not board.use for board in group]) - shape.wanted
            cpu, memory = host.cpu_free - shape.cpu_milli, host.memory_free - shape.host_memory_mib
            gone: list[Unit] = []
            for unit in on_node:
                if boards >= 0 and cpu >= 0 and memory >= 0:
                    break
                if not self._spares_guarantee(claim, unit):
                    continue
                more = unit.on[node_id]
                boards, cpu, memory = boards + more[0], cpu + more[1], memory + more[2]
                gone.append(unit)
            if not gone or boards < 0 or cpu < 0 or memory < 0:
                continue
            kept = []
            for unit in reversed(gone):
                less = unit.on[node_id]
                if boards >= less[0] and cpu >= less[1] and memory >= less[2]:
                    boards, cpu, memory = boards - less[0], cpu - less[1], memory - less[2]
                else:
                    kept.append(unit)
            if kept:
                prices.append((sum([unit.loss for unit in kept]), len(kept), kept, group))
        return prices

    def _empty_nodes(self, claim: Claim, shape: Shape, able: _Able) -> bool:
        """Drop what a gang needs: on the cheapest nodes, or with any number of nodes the cheapest units at all."""
        if not shape.nodes:
            return self._empty_any(claim, shape, able)
        free = sum(self._has_room(shape, group) for group in self.room.groups(shape.kind))
        for _, _, units, group in sorted(self._prices(claim, shape, able), key=lambda price: price[:2]):
            if free >= shape.nodes:
                break
            for unit in units:
                if unit not in self._gone and self._spares_guarantee(claim, unit):
                    self._drop(unit)
            free += self._has_room(shape, group)
        return free >= shape.nodes

    def _empty_any(self, claim: Claim, shape: Shape, able: _Able) -> bool:
        groups = self.room.groups(shape.kind)
        group_of = {board.device.id: group for group in groups for board in group}
        free = sum(node_room(group, shape) for group in groups)
        for unit in islice(self._able(able), MOST_UNITS):
            near = {
                id(group_of[h.device_id]): group_of[h.device_id] for h in unit.held if h.device_id in group_of
            }
            if not near or not self._spares_guarantee(claim, unit):
                continue
            was = sum(node_room(group, shape) for group in near.values())
            self._drop(unit)
            free += sum(node_room(group, shape) for group in near.values()) - was
            if free >= shape.wanted:
                self._look_again()
                if self.room.spots(shape) is not None:
                    return True
        return False

    def _nodes(self, shape: Shape, able: _Able) -> list[tuple[Sequence[Board], list[Unit]]]:
        """At most MOST_NODES nodes where units stand in the way, the one with the cheapest unit first."""
        groups = {group[0].node.id: group for group in self.room.groups(shape.kind)}
        found: list[tuple[Sequence[Board], list[Unit]]] = []
        for node_id in sorted(
            self._on.keys() & groups.keys(), key=lambda node: (self._on[node][0].rank, node)
        ):
            group = groups[node_id]
            units = [one for one in self._on[node_id] if one not in self._is_gone and able.holds_for(one)]
            if units and self.room.could_hold(group, shape) and _could_free(group, units, shape):
                found.append((group, units))
                if len(found) == MOST_NODES:
                    break
        return found

    def _clear(self, claim: Claim, shape: Shape, group: Sequence[Board], units: Iterable[Unit]) -> bool:
        """Drop units of this node, the cheapest first, until the shape has room on it; then spare what can be."""
        for unit in units:
            if self._has_room(shape, group):
                break
            if self._spares_guarantee(claim, unit):
                self._drop(unit)
        if not self._has_room(shape, group):
            return False
        self._spare(lambda: self._has_room(shape, group))
        return True

    def _has_room(self, shape: Shape, group: Sequence[Board]) -> bool:
        if shape.kind.mode == "exclusive":
            idle = sum([not board.use for board in group])
            return idle >= shape.wanted and self.room.host_of(group[0]).has_room(shape)
        return self.room.host_of(group[0]).has_room(shape) and node_room(group, shape) >= shape.wanted

    def _spare(self, is_enough: Callable[[], bool]) -> None:
        """Put back, the dearest first, whoever is not needed."""
        for unit in sorted(self._gone, key=lambda u: -u.rank):
            self._put_back([unit])
            if not is_enough():
                self._drop(unit)

    def _give_back_quota(self, claim: Claim, shape: Shape, able: _Able) -> None:
        """Drop further units, the cheapest first, each of which lowers what the quota is short of."""
        budget, cost = self.room.budget, self.room.least_cost(shape)
        if not budget.shortfall(claim.team_id, cost):
            return
        for unit in islice(self._able(able), MOST_UNITS):
            short = budget.shortfall(claim.team_id, cost)
            if not short:
                return
            if unit in self._gone or not self._spares_guarantee(claim, unit):
                continue
            self._drop(unit)
            if budget.shortfall(claim.team_id, cost) >= short:
                self._put_back([unit])

    def _drop(self, unit: Unit) -> None:
        self._gone[unit] = None
        self._count(unit, -1)
        self._refill(unit)

    def _put_back(self, units: Iterable[Unit]) -> None:
        for unit in units:
            del self._gone[unit]
            self._count(unit, 1)
            self._refill(unit)

    def _count(self, unit: Unit, sign: int) -> None:
        for held in unit.held:
            board = self.room.board_of.get(held.device_id)
            if board is not None:
                self._saved.setdefault(board, list(board.held))
                self._first.setdefault(board, self._saved[board])
                self.room.host_of(board).take(held, sign)
                self.room.budget.take(held.team_id, sign * board.cost_of(held))

    def _refill(self, unit: Unit) -> None:
        """Let the unit's boards hold what they held, without those that are dropped now."""
        gone = {lease.lease_id for one in self._gone for lease in one.leases}
        for device_id in {held.device_id for held in unit.held}:
            board = self.room.board_of.get(device_id)
            if board is None:
                continue
            left = [held for held in self._saved[board] if held.lease_id not in gone]
            is_host_alone = all(held.is_host for held in left) and len(left) < len(self._saved[board])
            board.refill([] if is_host_alone else left)

    def _look_again(self) -> None:
        self.room.look_again_at(held for board in self._saved for held in self._saved[board])


class _Able:
    """Which units a claim may take, by kind or by score; never those of a claim that it yields to.

    By score go those above ``bound`` that do not stand higher.
    """

    def __init__(self, whys: Mapping[UnitKind, str], claim: Claim, bound: float) -> None:
        self._whys = whys
        self.has_rights = any(whys.values())
        self.bound = bound
        self._priority = claim.priority
        self._but = claim.yields_to | {claim.id}

    def holds_for(self, unit: Unit) -> bool:
        """Whether it may take this one."""
        is_worse = unit.score > self.bound and unit.lease.priority <= self._priority
        return (is_worse or bool(self._whys[unit.kind])) and unit.lease.claim_id not in self._but


def outranks(claim: Claim, priority: int) -> bool:
    """Whether the claim stands higher than a lease that may be preempted: by priority, or at equal priority
    because it may not be preempted itself.
    """
    return (claim.priority, not claim.is_preemptible) > (priority, False)


def hopeful(
    snapshot: Snapshot, policy: PolicyRules, claims: Iterable[Claim], most: int, *, by_score: bool = False
) -> list[Claim]:
    """The first of the claims, at most so many, that may take anything of what lives at all: a quick look."""
    rules = policy.preempting
    if by_score and any(one.is_preemptible for one in snapshot.running):
        return list(islice(claims, most))
    kinds = {
        UnitKind(one.is_extra, one.is_preemptible, one.priority, 0)
        for one in snapshot.running
        if one.is_extra or (rules.preemptible and one.is_preemptible)
    }
    guaranteed = teams_with_guarantees_left(snapshot) if rules.borrowed else frozenset()
    known: dict[tuple[int, bool], bool] = {}
    found: list[Claim] = []
    for claim in claims if kinds or guaranteed else ():
        key = claim.priority, claim.is_preemptible
        if key not in known:
            known[key] = any(kind.is_extra or outranks(claim, kind.priority) for kind in kinds)
        if known[key] or claim.team_id in guaranteed:
            found.append(claim)
            if len(found) == most:
                break
    return found


def teams_with_guarantees_left(snapshot: Snapshot) -> frozenset[int]:
    """The teams whose account in a cohort uses less than its guarantee."""
    if not any(q.cohort_id is not None and q.used_milli < q.guaranteed_milli for q in snapshot.quotas):
        return frozenset()
    budget = Budget(snapshot.quotas)
    members = ((q.team_id, budget.member(q.team_id)) for q in snapshot.quotas)
    return frozenset(team_id for team_id, its in members if its is not None and its.used < its.guaranteed)


def _could_free(group: Sequence[Board], units: Iterable[Unit], shape: Shape) -> bool:
    """Whether enough boards of the node would be open if all these units went; says yes where it is unsure."""
    if shape.kind.mode != "exclusive":
        return True
    leases = {lease.lease_id for unit in units for lease in unit.leases}
    able = sum(all(held.is_host or held.lease_id in leases for held in board.held) for board in group)
    return able >= (shape.wanted if shape.nodes else 1)
