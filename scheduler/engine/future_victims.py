"""Leases that will go for better scores while the queue is played forward.

A turn compares what waits with what runs (``victims``). Who gets nothing now may do so soon: leases that have just
begun become ripe, and a claim's score improves while it waits. Here the same question is asked of a later instant,
by counting whole boards node by node, which is all that a forecast needs. What borrowed or stands lower by priority
is not asked: that does not change with time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

import numpy as np

from scheduler.engine.board import Board
from scheduler.engine.columns import Flags, Floats, Ints
from scheduler.engine.gang_capacity import lightest, parts_now
from scheduler.engine.model import Claim, Grant, Held, PolicyRules, Running, Snapshot
from scheduler.engine.occupancy import Occupancy
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.order.ranking import LeaseColumns, Scored
from scheduler.engine.place.fill import Spot, fill
from scheduler.engine.policy import heeds_scores
from scheduler.engine.shape import Shape


@dataclass(frozen=True, slots=True)
class FutureVictim:
    """Leases of one request that go together, with what they hold, and their score as of then."""

    leases: tuple[Running, ...]
    held: tuple[Held, ...]
    score: float

    def again(self, taker: Claim, room: Occupancy, now: datetime) -> Claim:
        """The claim by which its request queues again, for boards like those that it had."""
        one = self.leases[0]
        boards = [room.board_of[held.device_id] for held in self.held]
        parts = Counter(board.node.id for board in boards)
        is_even = len(set(parts.values())) == 1
        return Claim(
            one.claim_id,
            one.team_id,
            "exclusive",
            len(boards) // len(parts) if is_even else len(boards),
            max(int((one.until - now).total_seconds()), 1),
            one.priority,
            one.queued_at or one.started_at,
            models=frozenset(board.device.model for board in boards),
            nodes=len(parts) if is_even else 0,
            user_id=one.user_id,
            work=one.work,
            is_preemptible=True,
            predicted_s=one.predicted_s,
            ran_s=one.ran_s + max(int((now - one.started_at).total_seconds()), 0),
            evictions=one.evictions + 1,
            yields_to=frozenset((taker.id,)),
        )


class FutureVictims:
    """Who goes at later instants; ``look`` comes before ``find``. Changes nothing in the room."""

    @classmethod
    def of(
        cls, snapshot: Snapshot, policy: PolicyRules, room: Occupancy, lineup: Lineup
    ) -> FutureVictims | None:
        """Those of a room that is played forward; None where nobody ever goes for a better score."""
        rules, scored = policy.preempting, lineup.scored
        if not rules.by_score or scored is None:
            return None
        known: Iterable[Claim | Running] = chain(snapshot.running, snapshot.queue)
        if not any(heeds_scores(one, rules) for one in known):
            return None
        return cls(snapshot, policy, room, scored)

    def __init__(self, snapshot: Snapshot, policy: PolicyRules, room: Occupancy, scored: Scored) -> None:
        self._rules = policy.preempting
        self._room = room
        self._scored = scored
        nodes: dict[int, int] = {}
        self._node = np.array([nodes.setdefault(b.node.id, len(nodes)) for b in room.boards], np.int64)
        self._boards_on: list[list[Board]] = [[] for _ in nodes]
        for board in room.boards:
            self._boards_on[nodes[board.node.id]].append(board)
        self._serving: dict[object, Flags] = {}
        self._lives = LeaseColumns()
        self._leases: list[tuple[Running, ...]] = []
        self._new: dict[int, list[Running]] = defaultdict(list)
        for lease in snapshot.running:
            if lease.preempt_at is None and not lease.is_extra and heeds_scores(lease, self._rules):
                self._new[lease.claim_id].append(lease)

    def started(self, grant: Grant, claim: Claim, at: datetime, units: int) -> None:
        """Hear that a claim runs from now on."""
        if claim.mode == "exclusive" and heeds_scores(claim, self._rules):
            until = at + timedelta(seconds=grant.duration_s)
            self._new[claim.id] = [
                Running(
                    -claim.id, claim.id, claim.team_id, claim.user_id, grant.node_id, at, until, grant.cost_milli,
                    count=units, priority=claim.priority, work=claim.work, is_preemptible=True,
                    evictions=claim.evictions, ran_s=claim.ran_s, predicted_s=claim.predicted_s,
                    queued_at=claim.queued_at,
                )
            ]  # fmt: skip

    def look(self, now: datetime, claims: Sequence[Claim]) -> dict[int, float]:
        """Compare as of ``now``, when whoever is told to go is gone; the scores of these claims, by id."""
        told = now - timedelta(seconds=self._rules.grace_s)
        held: dict[int, list[tuple[int, Held]]] = defaultdict(list)
        for number, board in enumerate(self._room.boards):
            if board.use == "exclusive" and len(board.held) == 1 and board.held[0].lease_id is not None:
                held[board.held[0].lease_id].append((number, board.held[0]))
        kept = [row for row, own in enumerate(self._leases) if all(one.lease_id in held for one in own)]
        new = [tuple(own) for own in self._new.values() if all(one.lease_id in held for one in own)]
        self._leases = [*[self._leases[row] for row in kept], *new]
        self._lives.change(kept, new)
        self._new.clear()
        self._held = [tuple(h for one in own for _, h in held[one.lease_id]) for own in self._leases]
        scored = self._scored.later(told, claims)
        rows = [
            (row, number)
            for row, own in enumerate(self._leases)
            for one in own
            for number, _ in held[one.lease_id]
        ]
        self._row, self._at = (np.array(rows, np.int64).reshape(-1, 2)).T
        at = self._lives.columns
        self._score = scored.scores_of(self._lives) if self._leases else np.zeros(0)
        least, evictions = max(self._rules.least_run_s, 1), [own[0].evictions for own in self._leases]
        tries = np.array(evictions, float)
        self._may_go: Flags = (
            (told.timestamp() - at[LeaseColumns.began] >= least * (1.0 + tries))
            & (at[LeaseColumns.until] > now.timestamp())
            & (tries < self._rules.most_evictions)
        )
        self._cost: Floats = at[LeaseColumns.cost_milli]
        self._priority: Ints = np.array([own[0].priority for own in self._leases], np.int64)
        return {claim.id: scored.score(claim) for claim in claims}

    def find(self, claim: Claim, shape: Shape, score: float) -> list[FutureVictim] | None:
        """Who goes so that the claim has room, at the least loss; None where that is not enough."""
        if shape.kind.mode != "exclusive" or shape.wants_host:
            return None
        may = self._may_go & (self._score > self._rules.factor * score) & (self._priority <= claim.priority)
        for row in np.flatnonzero(may).tolist() if claim.yields_to else ():
            may[row] = self._leases[row][0].claim_id not in claim.yields_to
        serves = self._serves(shape)
        flat = may[self._row] & serves[self._at]
        idle = np.array([not board.use for board in self._room.boards], np.bool_) & serves
        count = len(self._boards_on)
        idle_on = np.bincount(self._node[idle], minlength=count)
        could = idle_on + np.bincount(self._node[self._at[flat]], minlength=count)
        if shape.nodes == 0:
            if int(could.sum()) < shape.wanted:
                return None
            return self._cheapest(np.flatnonzero(flat), shape.wanted - int(idle_on.sum()))
        able = np.flatnonzero(could >= shape.wanted)
        if len(able) < shape.nodes:
            return None
        priced = []
        for node in able.tolist():
            here = np.flatnonzero(flat & (self._node[self._at] == node))
            rows = self._cheapest_rows(here, shape.wanted - int(idle_on[node]))
            priced.append((sum(self._loss(row) for row in rows), node, rows))
        priced.sort()
        chosen = dict.fromkeys(row for _, _, rows in priced[: shape.nodes] for row in rows)
        return [self._gone(row) for row in chosen]

    def _serves(self, shape: Shape) -> Flags:
        known = self._serving.get(shape.kind)
        if known is None:
            known = self._serving[shape.kind] = np.array(
                [board.serves(shape.kind) and not board.blocked for board in self._room.boards], np.bool_
            )
        return known

    def _loss(self, row: int) -> float:
        return float(self._cost[row] / self._score[row])

    def _cheapest(self, flat: Ints, boards: int) -> list[FutureVictim]:
        return [self._gone(row) for row in self._cheapest_rows(flat, boards)]

    def _cheapest_rows(self, flat: Ints, boards: int) -> list[int]:
        """The worst scores first until so many boards come free; then those not needed are spared."""
        gives = Counter(self._row[flat].tolist())
        chosen: list[int] = []
        for row in sorted(gives, key=lambda row: (-self._score[row], row)):
            if boards <= 0:
                break
            chosen.append(row)
            boards -= gives[row]
        for row in reversed(chosen[:]):
            if boards + gives[row] <= 0:
                boards += gives[row]
                chosen.remove(row)
        return chosen

    def _gone(self, row: int) -> FutureVictim:
        self._may_go[row] = False
        return FutureVictim(self._leases[row], self._held[row], float(self._score[row]))


def idle_spots(room: Occupancy, shape: Shape) -> list[Spot] | None:
    """Idle boards for the shape, whatever is promised to others: who is preempted for is served before them."""
    groups = room.groups(shape.kind)
    if shape.is_spread:
        return lightest(shape, parts_now(shape, groups, room.host_of))
    found = (fill([(board, board.room(shape)) for board in group], shape) for group in groups)
    return next((spots for spots in found if spots is not None), None)
