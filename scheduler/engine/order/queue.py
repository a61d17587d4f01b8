"""A queue over a floor of whole boards, with everything a policy needs: drive it with events, ask for turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.engine import kernel
from scheduler.engine.columns import Ints
from scheduler.engine.learning.curves import CURVES
from scheduler.engine.learning.history import History
from scheduler.engine.line import (
    QUEUED,
    RUNNING,
    WAITING,
    Floor,
    Line,
    age_of,
    close_ranks,
    join,
    leave,
    new_floor,
    new_line,
)
from scheduler.engine.order.fair_tree import Branch, decayed, fair_ranks
from scheduler.engine.order.rules import TREE, QueuePolicy, take_turn_of
from scheduler.engine.order.turn import NEVER, Outcome, Rule
from scheduler.engine.preempt import Teams, new_scratch

LEAST_RATIO = 0.05


class Queue:
    """Requests by row, in the order that settles ties: arrive, end, and turns in between.

    ``shares`` are what the teams are entitled to, in any unit. Same events and turns, same answers. Times
    are whole seconds and must not fall. Not for several threads at once.
    """

    def __init__(
        self,
        policy: QueuePolicy,
        boards: Sequence[int],
        gpus: Sequence[int],
        team: Sequence[int],
        shares: Sequence[float],
        *,
        is_compiled: bool | None = None,
    ) -> None:
        if is_compiled is None:
            is_compiled = policy.changes and len(boards) >= 8 and kernel.can_compile()
        self.policy = policy
        self.floor: Floor = new_floor(boards)
        total = int(self.floor.boards.sum())
        self.line: Line = new_line(gpus, team, total)
        self.line.weight[:] = self.line.gpus.astype(float) ** policy.size_power
        curve = CURVES[policy.curve or "mean"]
        self.history = History(len(shares) if policy.curve else 0, policy.smoothing, curve)
        self.rule = Rule(policy.care, policy.guard, self.history.table, total, not policy.changes)
        self.teams = self._teams(np.array(shares, float), total)
        self.share = np.array(shares, float) / max(sum(shares), 1e-300)
        self.usage = np.zeros(len(shares))
        self.counted_to = 0
        self.scratch = new_scratch(self.floor)
        self.out = Outcome(np.zeros(len(gpus), np.int64), np.zeros(len(gpus), np.int64))
        self.take_turn = take_turn_of(policy.rate, is_compiled)

    def _teams(self, shares: np.ndarray[tuple[int], np.dtype[np.float64]], total: int) -> Teams:
        count = len(shares)
        part = shares / max(float(shares.sum()), 1e-300)
        return Teams(
            kind=self.policy.fairness,
            hysteresis=self.policy.hysteresis,
            ratio=np.zeros(count),
            rank=np.zeros(count, np.int64),
            used=np.zeros(count, np.int64),
            guarantee=np.floor(part * total).astype(np.int64),
            promised=np.zeros(count, np.int64),
            stuck=np.full(max(count, 1), NEVER, np.int64),
        )

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return int(self.line.sums[QUEUED])

    def arrive(self, row: int, now: int, estimate: float = 0.0) -> None:
        """A request begins to wait; an estimate of its duration in seconds, 0 for none."""
        line = self.line
        line.estimate[row] = estimate
        if self.policy.curve:
            line.form[row] = self.history.form_of(int(line.team[row]), int(line.gpus[row]), estimate)
            self.history.draw(int(line.form[row]))
        join(line, row, now)

    def end(self, row: int, now: int) -> None:
        """A running request has ended by itself."""
        self._count(now)
        self.teams.used[self.line.team[row]] -= self.line.gpus[row]
        leave(self.line, self.floor, row, now)
        if self.policy.curve:
            self.history.note_end(int(self.line.form[row]), float(self.line.age[row]))

    def turn(self, now: int) -> tuple[Ints, Ints]:
        """Rows that begin now and rows that are preempted now; the latter wait again, and repay their cost."""
        self._count(now)
        if self.policy.curve and self.history.is_due(now):
            self._learn(now)
        if self.policy.fairness == TREE:
            self._rank()
        began, evicted = self.take_turn(
            self.line, self.floor, self.rule, self.teams, self.scratch, now, self.out
        )
        if began:
            close_ranks(self.line)
        return self.out.began[:began], self.out.evicted[:evicted]

    def _learn(self, now: int) -> None:
        line = self.line
        live = np.flatnonzero((line.state == WAITING) | (line.state == RUNNING))
        forms = line.form[live]
        ages = np.array([age_of(line, int(row), now) for row in live], float)
        self.history.renew(now, forms, ages)
        for form in np.unique(forms):
            self.history.draw(int(form))

    def _count(self, now: int) -> None:
        """Bring the teams' decayed usage up to date (GPU-seconds)."""
        if self.policy.fairness != TREE or now <= self.counted_to:
            return
        passed = now - self.counted_to
        self.usage *= decayed(1.0, passed, self.policy.half_life_s)
        self.usage += self.teams.used * passed
        self.counted_to = now

    def _rank(self) -> None:
        total = max(float(self.usage.sum()), 1e-300)
        self.teams.ratio[:] = np.maximum(self.usage / total / np.maximum(self.share, 1e-300), LEAST_RATIO)
        tree = [
            Branch(str(at), float(s), float(u))
            for at, (s, u) in enumerate(zip(self.share, self.usage, strict=True))
        ]
        for name, rank in fair_ranks(tree).items():
            self.teams.rank[int(name)] = rank
