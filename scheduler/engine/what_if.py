"""Whether a claim that nobody has made yet may use the room of a step: its quota, and what begins before its end."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np

from scheduler.engine.blocks import Ahead
from scheduler.engine.board_history import HistoryColumns
from scheduler.engine.columns import Ints
from scheduler.engine.model import Claim, Held
from scheduler.engine.quota import Budget
from scheduler.engine.shape import Shape
from scheduler.engine.timeline import CHECKPOINT, Timeline

NEVER = 1 << 60


class Asker(NamedTuple):
    """Who asks: a claim, its shape, how many queued claims go before it, and what it costs at least and at most."""

    claim: Claim
    shape: Shape
    rank: int
    least: int
    most: int


class WhatIf:
    """One what-if against one timeline; ``holds`` is asked for steps in rising order.

    ``seen`` says from which step the asker sees each record.
    """

    def __init__(self, timeline: Timeline, records: HistoryColumns, seen: Ints, asker: Asker) -> None:
        self._timeline = timeline
        self._records = records
        self._seen = seen
        self._claim, self._shape, self._rank, self._least, self._most = asker
        self._budget = Budget(timeline.snapshot.quotas)
        self._spent = 0
        self._is_bounded = self._budget.headroom(self._claim.team_id) is not None
        self._duration = timedelta(seconds=self._claim.duration_s)
        self._kept: dict[int, list[Ahead]] = defaultdict(list)
        for one in timeline.ahead:
            # A board that is out of order has no row: what is kept on it stands in nobody's way.
            row = timeline.row_of.get(one.block.held.device_id)
            if row is not None and one.rank < asker.rank:
                self._kept[row].append(one)
        self._kept_on: dict[int, list[int]] = defaultdict(list)
        for row in self._kept:
            self._kept_on[records.node_of(row)].append(row)
        self._closed_until: dict[int, int] = {}
        self._rows_on: dict[int, list[int]] = {}
        self._prices: dict[int, tuple[list[int], int]] = {}

    def holds(self, step: int, nodes: Sequence[int]) -> bool:
        """Whether the claim could start at the step on one of the nodes (a gang over several: on all of them)."""
        if not self._can_pay(step):
            return False
        if self._is_bounded and not self._allows(self._most):
            return self._finds_payable(step, nodes)
        if not self._kept:
            return True
        if not self._shape.is_spread:
            return any(self._is_open(step, node) for node in nodes)
        units = [self._units(step, node) for node in nodes]
        if self._shape.nodes:
            return sum(one >= self._shape.wanted for one in units) >= self._shape.nodes
        return sum(units) >= self._shape.wanted

    def _finds_payable(self, step: int, nodes: Sequence[int]) -> bool:
        """Whether the quota pays for the cheapest units that have room: not for any, and boards differ in weight."""
        wanted = self._shape.wanted
        if not self._shape.is_spread:
            open_nodes = (node for node in nodes if self._is_open(step, node))
            found = (self._costs(step, node) for node in open_nodes)
            return any(len(costs) >= wanted and self._allows(sum(costs[:wanted])) for costs in found)
        found = (self._costs(step, node) for node in nodes)
        if self._shape.nodes:
            units = sorted(sum(costs[:wanted]) for costs in found if len(costs) >= wanted)
            wanted = self._shape.nodes
        else:
            units = sorted(cost for costs in found for cost in costs)
        return len(units) >= wanted and self._allows(sum(units[:wanted]))

    def _costs(self, step: int, node: int) -> list[int]:
        """What each unit costs that fits on the node for the whole time from this step on, the cheapest first."""
        costs, until = self._prices.get(node, ([], 0))
        if step < until:
            return costs
        boards, costs = self._timeline.history.boards, []
        for row, units in self._fitting(step, node):
            if units:
                costs += [boards[row].unit_cost(self._shape)] * units
        costs.sort()
        # What is kept on the node comes nearer with every step.
        until = step + 1 if node in self._kept_on else self._changes_at(step, node)
        self._prices[node] = costs, until
        return costs

    def _changes_at(self, step: int, node: int) -> int:
        """The next step at which the asker sees something else on the node."""
        seen = self._seen[self._records.first_on[node] : self._records.first_on[node + 1]]
        after = int(np.searchsorted(seen, step, side="right"))
        return int(seen[after]) if after < len(seen) else NEVER

    def _is_open(self, step: int, node: int) -> bool:
        """Whether one node has the room for the whole time; where nothing is in the way, as the step shows it."""
        if step < self._closed_until.get(node, 0):
            return False
        kept = self._kept_on.get(node, ())
        if not any(self._later(step, row) for row in kept) or self._units(step, node) >= self._shape.wanted:
            return True
        # While it holds the same and the same is kept on it, there is no more room: what begins only comes nearer.
        changes = [one.till for row in kept for one in self._kept[row] if one.till > step]
        self._closed_until[node] = min(self._changes_at(step, node), *changes, NEVER)
        return False

    def _can_pay(self, step: int) -> bool:
        if not self._is_bounded:
            return True
        spends = self._timeline.spends
        self._jump(step)
        while self._spent < len(spends):
            at, rank, team_id, cost = spends[self._spent]
            if at + (rank >= self._rank) > step:
                break
            self._budget.take(team_id, cost)
            self._spent += 1
        return self._allows(self._least)

    def _allows(self, cost: int) -> bool:
        return self._budget.allows(self._claim.team_id, cost)

    def _jump(self, step: int) -> None:
        """Go on from the last checkpoint of the budget before this step, if that is ahead."""
        timeline = self._timeline
        passed = bisect_left(timeline.spends, (step,))
        number = min(passed // CHECKPOINT, len(timeline.checkpoints) - 1)
        if number * CHECKPOINT > self._spent:
            used = timeline.checkpoints[number]
            quotas = timeline.snapshot.quotas
            self._budget = Budget(replace(quota, used_milli=used[quota.team_id]) for quota in quotas)
            self._spent = number * CHECKPOINT

    def _units(self, step: int, node: int) -> int:
        """Units of the shape that fit on the node for the whole time from this step on."""
        return sum(units for _, units in self._fitting(step, node))

    def _fitting(self, step: int, node: int) -> list[tuple[int, int]]:
        """The same board by board, as rows with units."""
        found = []
        cpu = memory = 0
        for row in self._rows(node):
            later = self._later(step, row)
            cpu += sum(held.cpu_milli for held in later)
            memory += sum(held.host_memory_mib for held in later)
            found.append((row, self._room(step, row, later)))
        if not self._shape.wants_host or not (cpu or memory):
            return found
        last = max((self._record_at(step, row) for row in self._rows(node)), default=-1)
        free_cpu = int(self._records.cpu[last]) - cpu
        free_memory = int(self._records.memory[last]) - memory
        is_enough = free_cpu >= self._shape.cpu_milli and free_memory >= self._shape.host_memory_mib
        return found if is_enough else []

    def _rows(self, node: int) -> list[int]:
        known = self._rows_on.get(node)
        if known is None:
            first, last = self._records.first_on[node], self._records.first_on[node + 1]
            known = self._rows_on[node] = sorted(set(self._records.row[first:last].tolist()))
        return known

    def _later(self, step: int, row: int) -> list[Held]:
        now = self._timeline.times[step]
        return [
            one.block.held
            for one in self._kept.get(row, ())
            if one.since + (one.by >= self._rank) <= step < one.till
            and now < one.block.starts_at < now + self._duration
        ]

    def _room(self, step: int, row: int, later: Sequence[Held]) -> int:
        history = self._timeline.history
        device = history.boards[row].device
        if not history.boards[row].serves(self._shape.kind):
            return 0
        state = history.states[int(self._records.state[self._record_at(step, row)])]
        if later:
            beside = state.beside(later, self._timeline.policy)
            return 0 if beside is None else beside.room(self._shape, device.memory_mib, device.max_clients)
        return state.room(self._shape, device.memory_mib, device.max_clients)

    def _record_at(self, step: int, row: int) -> int:
        """The last record of the board that is seen at the step."""
        numbers = self._records.of_row(row)
        return int(numbers[np.searchsorted(self._seen[numbers], step, side="right") - 1])
