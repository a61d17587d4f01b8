"""What could be told to go: leases that go together, what that loses, and what it gives back.

Leases that live and end together (the parts of a gang) are one unit; what a lease has grown by is a unit of
its own. A unit is lost time: what it ran since its start, times what it takes of the quota. Grown units cost
nothing. Where the policy compares scores a unit is lost cost over score instead: what is nearly done, or waited
long, costs most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.model import Held, PolicyRules, Running, Snapshot
from scheduler.engine.order.ranking import LeaseColumns, Scored
from scheduler.engine.policy import Preempting, heeds_scores
from scheduler.engine.quota import Budget
from scheduler.engine.state import EngineState


class UnitKind(NamedTuple):
    """Units of which a claim may take all or none, but for those it yields to."""

    is_extra: bool
    is_preemptible: bool
    priority: int
    team_id: int


class Unit:
    """Leases that can only go together, with what they hold. ``loss`` is in quota units x seconds.

    Where scores are compared ``loss`` is in quota units over score, and ``score`` that of the unit: 0 where it
    does not go for a better one. These two and ``rank`` hold for one turn, the rest as long as the leases do.
    ``on`` says by node what going gives back: boards, milli-CPU, MiB.
    """

    __slots__ = ("claim_id", "cost", "held", "is_whole", "kind", "leases", "loss", "on", "rank", "score")

    def __init__(self, leases: tuple[Running, ...], held: tuple[Held, ...], room: EngineState) -> None:
        one = leases[0]
        self.leases = leases
        self.claim_id = one.claim_id
        self.held = held
        self.kind = UnitKind(one.is_extra, one.is_preemptible, one.priority, one.team_id)
        self.cost = sum(lease.cost_milli for lease in leases)
        self.is_whole = all(place.mode == "exclusive" for place in held)
        self.on: dict[int, tuple[int, int, int]] = {}
        for place in held:
            board = room.board_of.get(place.device_id)
            if board is not None:
                boards, cpu, memory = self.on.get(board.node.id, (0, 0, 0))
                self.on[board.node.id] = boards + 1, cpu + place.cpu_milli, memory + place.host_memory_mib
        self.loss: float = 0
        self.score = 0.0
        self.rank = 0

    @property
    def lease(self) -> Running:
        """The lease that speaks for them."""
        return self.leases[0]


class Units:
    """What may go at all now, whoever asks: rows of the units that a room knows, the cheapest first."""

    def __init__(self, known: _Known, rows: Sequence[int], losses: Floats, scores: Floats) -> None:
        self.known = known
        self._rows = rows
        self._losses = losses
        self._scores = scores
        self.worst = float(scores.max(initial=0.0))

    def worse_than(self, bound: float) -> list[Unit]:
        """Those with a higher score, the cheapest first."""
        return self._at(np.flatnonzero(self._scores > bound).tolist())

    @cached_property
    def ranked(self) -> list[Unit]:
        """All of them."""
        return self._at(range(len(self._rows)))

    def _at(self, ranks: Sequence[int]) -> list[Unit]:
        found = []
        for rank in ranks:
            unit = self.known.units[self._rows[rank]]
            unit.rank, unit.loss, unit.score = rank, self._losses[rank].item(), self._scores[rank].item()
            found.append(unit)
        return found

    def __len__(self) -> int:
        return len(self._rows)


def units_of(
    snapshot: Snapshot, policy: PolicyRules, room: EngineState, scored: Scored | None = None
) -> Units:
    """What could be told to go at all now, whoever asks.

    Left alone are those that were told already, that end within the grace period anyway, that have not run for
    the least time, or were preempted often enough. What was grown may go at any time. ``scored`` gives scores,
    where the policy compares them. A room that outlives the turn remembers units of leases that stay the same.
    """
    rules, now = policy.preempting, snapshot.taken_at.timestamp()
    known: _Known | None = room.kept.get("units")
    if known is None:
        known = room.kept["units"] = _Known(room)
    known.see(snapshot, rules)
    at, lives = known.columns, known.lives.columns
    may_go = (at[_ENDS] > now + rules.grace_s) & (at[_STARTED] <= now - rules.least_run_s)
    if scored is None:
        losses = np.array([float(_lost(unit.leases, snapshot.taken_at)) for unit in known.units])
        scores = np.zeros(len(losses))
        order = np.lexsort((at[_LEASE], losses))
    else:
        scores = scored.scores_of(known.lives)
        costs, is_extra = lives[LeaseColumns.cost_milli], at[_IS_EXTRA] > 0
        losses = np.where(is_extra, 0.0, costs / scores)
        # Who was preempted before is left alone for longer each time.
        is_ripe = now - lives[LeaseColumns.began] >= max(rules.least_run_s, 1) * (1 + at[_EVICTIONS])
        scores = np.where(is_ripe & (at[_HEEDS_SCORES] > 0), scores, 0.0)
        # The worst scores first, as they have least to lose for what they hold.
        order = np.lexsort((at[_LEASE], losses / np.maximum(costs, 1)))
    order = order[may_go[order]]
    return Units(known, order.tolist(), losses[order], scores[order])


# What is known of a unit beside its life: the first end and the last start of its base in seconds since 1970 (what
# was grown may go at any time), whether it was grown and whether it goes for a better score.
_ENDS, _STARTED, _EVICTIONS, _IS_EXTRA, _HEEDS_SCORES, _LEASE = range(6)


class _Known:
    """The units of a room as rows, kept between turns for those whose leases stay the same."""

    def __init__(self, room: EngineState) -> None:
        self.units: list[Unit] = []
        self.lives = LeaseColumns()
        self.columns: Floats = np.zeros((6, 0))
        self.kinds: set[UnitKind] = set()
        self.is_whole = True  # whether all hold whole boards
        self.has_extras = False
        self._room = room
        self._seen: dict[int, Running] = {}
        self._rules: tuple[Preempting, frozenset[int]] | None = None

    def see(self, snapshot: Snapshot, rules: Preempting) -> None:
        """Look at what runs: rows of claims whose leases changed are made anew."""
        borrowers = _borrowers(snapshot) if rules.borrowed else frozenset()
        seen, now = self._seen, dict(zip(map(id, snapshot.running), snapshot.running, strict=True))
        if self._rules == (rules, borrowers):
            changed = {now[key].claim_id for key in now.keys() - seen.keys()}
            changed |= {seen[key].claim_id for key in seen.keys() - now.keys()}
        else:
            self._rules = rules, borrowers
            changed = {one.claim_id for one in (*seen.values(), *snapshot.running)}
        if not changed:
            return
        self._seen = now
        kept = [row for row, unit in enumerate(self.units) if unit.claim_id not in changed]
        new = self._made([one for one in snapshot.running if one.claim_id in changed], snapshot, borrowers)
        self.units = [*[self.units[row] for row in kept], *new]
        self.lives.change(kept, [unit.leases for unit in new])
        self.columns = self.columns[:, kept]
        if new:
            rows = np.array([_row(unit, rules) for unit in new]).T
            self.columns = np.concatenate([self.columns, rows], axis=1)
        self.kinds = {unit.kind for unit in self.units}
        self.is_whole = all(unit.is_whole for unit in self.units)
        self.has_extras = any(kind.is_extra for kind in self.kinds)

    def _made(self, leases: Iterable[Running], snapshot: Snapshot, borrowers: frozenset[int]) -> list[Unit]:
        """The units of these leases that hold anything and may ever go."""
        rules = self._rules[0] if self._rules else Preempting()
        groups: dict[int, list[Running]] = {}
        for one in leases:
            if one.is_extra or (rules.preemptible and one.is_preemptible) or one.team_id in borrowers:
                groups.setdefault(one.claim_id, []).append(one)
        chosen: list[tuple[Running, ...]] = []
        for group in groups.values():
            extras = [one for one in group if one.is_extra and one.preempt_at is None]
            chosen += [(one,) for one in extras]
            base = [one for one in group if not one.is_extra]
            if base and all(one.preempt_at is None and one.evictions < rules.most_evictions for one in base):
                chosen.append((*base, *extras))
        if not chosen:
            return []
        held: dict[int, list[Held]] = {one.lease_id: [] for its in chosen for one in its}
        for place in snapshot.held:
            if place.lease_id in held:
                held[place.lease_id].append(place)
        made = []
        for its in chosen:
            places = tuple(place for one in its for place in held[one.lease_id])
            if places:
                made.append(Unit(its, places, self._room))
        return made


def _row(unit: Unit, rules: Preempting) -> tuple[float, ...]:
    one = unit.leases[0]
    base = [lease for lease in unit.leases if not lease.is_extra] or [one]
    return (
        min(lease.until.timestamp() for lease in base),
        -math.inf if one.is_extra else max(lease.started_at.timestamp() for lease in base),
        one.evictions,
        one.is_extra,
        not one.is_extra and heeds_scores(one, rules),
        one.lease_id,
    )


def _borrowers(snapshot: Snapshot) -> frozenset[int]:
    """The teams that count for a member of a cohort which uses more than its guarantee."""
    if not any(q.cohort_id is not None and q.used_milli > q.guaranteed_milli for q in snapshot.quotas):
        return frozenset()
    budget = Budget(snapshot.quotas)
    members = ((q.team_id, budget.member(q.team_id)) for q in snapshot.quotas)
    return frozenset(team_id for team_id, its in members if its is not None and its.borrows() > 0)


def _lost(leases: Iterable[Running], now: datetime) -> int:
    return sum(
        max(1, int((now - one.started_at).total_seconds())) * max(1, one.cost_milli)
        for one in leases
        if not one.is_extra
    )
