"""A trace played by the compiled queue of ``engine.order.queue``, which only the forecast replay still uses.

All ends of a second come first, then its arrivals, then one pass; policies whose scores move with time also get
a pass each full minute while anything waits.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from scheduler.engine.columns import Ints
from scheduler.engine.line import FREE
from scheduler.engine.order.queue import Queue
from scheduler.engine.order.rules import QueuePolicy
from scheduler.replay.jobs import COLUMN, NONE, PERFECT, Jobs, estimates_from

TICK_S = 60


@dataclass(slots=True)
class Played:
    """What happened to each job: start of its last run and end; and how many passes and decisions it took."""

    queue: Queue
    began: Ints
    ended: Ints
    decisions: int = 0
    preemptions: int = 0


class Watch(Protocol):
    """Somebody who looks on while a trace is played; may look at the queue and must not change it."""

    def ended(self, queue: Queue, row: int, now: int) -> None:
        """A row has ended."""

    def turned(self, queue: Queue, came: range, began: list[int], now: int) -> None:
        """A pass is over: rows that arrived since the last one, and rows that began to run."""


def estimates_of(
    options: argparse.Namespace, policy: QueuePolicy, jobs: Jobs
) -> tuple[str, list[float] | None]:
    """Where the options take estimates from, and these. Raises BadTrace."""
    source = options.estimates or (PERFECT if policy.knows else COLUMN if jobs.estimate else NONE)
    return source, estimates_from(options.jobs, jobs, source)


def play(
    jobs: Jobs,
    policy: QueuePolicy,
    boards: list[int],
    estimates: list[float] | None,
    *,
    is_compiled: bool | None = None,
    watch: Watch | None = None,
) -> Played:
    """Play the trace to its last end."""
    queue = Queue(policy, boards, jobs.gpus, jobs.team, [1.0] * len(jobs.teams), is_compiled=is_compiled)
    count = len(jobs.submit)
    played = Played(queue, np.zeros(count, np.int64), np.zeros(count, np.int64))
    left, since, runs = list(jobs.duration), [0] * count, [0] * count
    ends: list[tuple[int, int, int]] = []
    arrived, seen, tick = 0, 0, 0
    while arrived < count or ends:
        now = min(jobs.submit[arrived] if arrived < count else ends[0][0], ends[0][0] if ends else 1 << 60)
        if queue.waiting and policy.changes:
            now = min(now, tick)
        while ends and ends[0][0] <= now:
            _, row, run_number = heapq.heappop(ends)
            if runs[row] == run_number:
                queue.end(row, now)
                played.ended[row] = now
                if watch:
                    watch.ended(queue, row, now)
        while arrived < count and jobs.submit[arrived] <= now:
            queue.arrive(arrived, now, estimates[arrived] if estimates else 0.0)
            arrived += 1
        tick = (now // TICK_S + 1) * TICK_S
        if not queue.waiting:
            continue
        began, evicted = queue.turn(now)
        played.decisions += len(began) + len(evicted)
        played.preemptions += len(evicted)
        for row in evicted.tolist():
            runs[row] += 1
            left[row] -= now - since[row]
            left[row] += _cost(policy, jobs.gpus[row])
        for row in began.tolist():
            runs[row] += 1
            since[row] = now
            heapq.heappush(ends, (now + left[row], row, runs[row]))
        if watch:
            watch.turned(queue, range(seen, arrived), began.tolist(), now)
            seen = arrived
    played.began[:] = since
    assert not queue.waiting
    assert int(queue.line.sums[FREE]) == sum(boards)
    return played


def _cost(policy: QueuePolicy, gpus: int) -> int:
    guard = policy.guard
    return guard.large_cost_s if gpus > guard.large_from else guard.small_cost_s
