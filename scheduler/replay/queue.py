"""Waiting under a queue policy: jobs of a trace arrive, wait, run and may be preempted on N nodes x G GPUs.

Whole GPUs, no sharing, consolidated placement. All ends of a second come first, then its arrivals, then one
pass; policies whose scores move with time also get a pass each full minute while anything waits. A wait is
all time spent pending; the 40 s (more than 8 GPUs: 60 s) that a preemption costs is run time.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scheduler.engine.columns import Ints
from scheduler.engine.line import FREE
from scheduler.engine.order.queue import Queue
from scheduler.engine.order.rules import QueuePolicy, policy_named
from scheduler.replay.tables import BadTrace, Row, rows

NEEDED = ("seq", "submit_s", "duration_s", "gpus")
COLUMN, PERFECT, NONE = "column", "perfect", "none"
TICK_S = 60
MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Jobs:
    """The trace by submit time and seq. Seconds; ``estimate`` is 0 where there is none."""

    submit: list[int]
    duration: list[int]
    gpus: list[int]
    team: list[int]
    estimate: list[float] | None
    teams: tuple[str, ...]


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument("--jobs", type=Path, required=True, help="CSV: seq,submit_s,duration_s,gpus[,vc,…]")
    parser.add_argument("--nodes", type=int, default=64, help="nodes of the cluster")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node")
    parser.add_argument("--policy", default="default", help="queue policy (default: default)")
    parser.add_argument(
        "--estimates",
        choices=(COLUMN, PERFECT, NONE),
        help="durations people give: the column est_duration_s (default where it exists; sjf and srtf: "
        "perfect), the true ones, or none",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay and measure. Raises BadTrace and UnknownPolicy."""
    started = time.perf_counter()
    policy = policy_named(options.policy)
    for name, value in (("--nodes", options.nodes), ("--gpus-per-node", options.gpus_per_node)):
        if not 1 <= value <= MOST:
            raise BadTrace(f"{name} {value}: between 1 and {MOST} are needed.")
    jobs = read(options.jobs, options.nodes * options.gpus_per_node)
    source, estimates = estimates_of(options, policy, jobs)
    began = time.perf_counter()
    played = play(jobs, policy, [options.gpus_per_node] * options.nodes, estimates)
    seconds = max(time.perf_counter() - began, 1e-9)
    return {
        "policy": options.policy,
        "estimates": source,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        **figures(jobs, played),
        "decisions_per_second": round(played.decisions / seconds),
        "decision_s": round(seconds, 3),
        "wall_s": round(time.perf_counter() - started, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def read(path: Path, most: int) -> Jobs:
    """The jobs of a CSV file; ``most`` is how many GPUs there are. Raises BadTrace."""
    found, teams = [], {"": 0}
    has_estimates, seen = False, set[int]()
    for row in rows(path, NEEDED):
        seq = row.integer("seq")
        if seq in seen:
            raise row.refusal("seq", f"{seq} stands in an earlier line as well")
        seen.add(seq)
        has_estimates = has_estimates or "est_duration_s" in row.cells
        team = teams.setdefault(row.optional("vc"), len(teams))
        found.append(
            (row.integer("submit_s"), seq, row.integer("duration_s"), _gpus(row, most), team, _estimate(row))
        )
    if not found:
        raise BadTrace(f"{path}: no job.")
    found.sort()
    submit, _, duration, gpus, team_of, estimate = (list(column) for column in zip(*found, strict=True))
    return Jobs(submit, duration, gpus, team_of, estimate if has_estimates else None, tuple(teams))


def _gpus(row: Row, most: int) -> int:
    count = row.integer("gpus", least=1)
    if count > most:
        raise row.refusal("gpus", f"is {count}, and the cluster has only {most} GPUs")
    return count


def _estimate(row: Row) -> float:
    return row.number("est_duration_s") if row.optional("est_duration_s") else 0.0


def estimates_of(
    options: argparse.Namespace, policy: QueuePolicy, jobs: Jobs
) -> tuple[str, list[float] | None]:
    """Where the options take estimates from, and these. Raises BadTrace."""
    source = options.estimates or (PERFECT if policy.knows else COLUMN if jobs.estimate else NONE)
    return source, _estimates(options.jobs, jobs, source)


def _estimates(path: Path, jobs: Jobs, source: str) -> list[float] | None:
    """What people say their jobs will take; None for nothing."""
    if source == NONE:
        return None
    if source == PERFECT:
        return [float(duration) for duration in jobs.duration]
    if jobs.estimate is None:
        raise BadTrace(f"{path}, line 1: no column est_duration_s; use --estimates none or perfect.")
    return jobs.estimate


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


def figures(jobs: Jobs, played: Played) -> dict[str, Any]:
    """What is reported. Utilisation: useful GPU-seconds over those of the cluster, first arrival to last end."""
    line, submit, duration = played.queue.line, np.array(jobs.submit), np.array(jobs.duration)
    wait, jct = line.waited, played.ended - submit
    span = max(int(played.ended.max() - submit.min()), 1)
    boards = int(played.queue.floor.boards.sum())
    slowdowns = []
    for team in np.unique(line.team):
        own = line.team == team
        slowdowns.append(float(jct[own].sum()) / max(float(duration[own].sum()), 1.0))
    p50, p99, p999 = np.percentile(wait, [50, 99, 99.9], method="higher")
    return {
        "jobs": len(submit),
        "mean_wait_s": round(float(wait.mean()), 2),
        "mean_jct_s": round(float(jct.mean()), 2),
        "p50_wait_s": round(float(p50), 1),
        "p99_wait_s": round(float(p99), 1),
        "p999_wait_s": round(float(p999), 1),
        "max_wait_s": int(wait.max()),
        "preemptions": played.preemptions,
        "max_preemptions_of_one_job": int(line.evictions.max()),
        "utilisation": round(float((line.gpus * duration).sum()) / (boards * span), 4),
        "worst_team_slowdown": round(max(slowdowns), 3),
    }
