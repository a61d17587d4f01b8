"""How good start forecasts are: the queue replay, with a forecast for arrivals that have to wait.

A forecast knows what is known at that second: who runs since when, who waits, and what ended requests taught
about durations. It plays the queue's own passes forward with the median remaining time of each request and no
further arrival; ``scheduler.engine.calibration`` turns the answer into P50 and P90 from the record of the
forecasts shown before, of which only what has come by then counts. The first start is what came.
"""

from __future__ import annotations

import argparse
import heapq
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.engine.calibration import Calibration, Sample, calibrated
from scheduler.engine.columns import Floats, Ints
from scheduler.engine.learning.bins import BINS, HIGH, LOW
from scheduler.engine.learning.curves import CURVES
from scheduler.engine.learning.history import History
from scheduler.engine.line import RUNNING, WAITING, Floor, Line, age_of, close_ranks, leave
from scheduler.engine.order.queue import Queue
from scheduler.engine.order.rules import policy_named
from scheduler.replay import rows as replay
from scheduler.replay.jobs import COLUMN, MOST, NONE, PERFECT, Jobs, read
from scheduler.replay.tables import BadTrace

HORIZON_S = 14 * 86_400
RENEW_S = 900  # how often the record is looked at again
LOOK_S = 60  # the first look ahead comes after a minute, later ones after a twentieth of the time imagined
SMOOTHING = 10.0
_EDGES: Floats = np.log2(np.append(np.maximum(LOW, 0.5), HIGH[-1]))


@dataclass(slots=True)
class Shown:
    """A forecast that was made, and what came."""

    row: int
    made: int
    raw_s: float
    p50_s: int
    p90_s: int
    wait_s: int = -1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument("--jobs", type=Path, required=True, help="CSV: seq,submit_s,duration_s,gpus[,vc,…]")
    parser.add_argument("--nodes", type=int, default=64, help="nodes of the cluster")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node")
    parser.add_argument("--policy", default="default", help="queue policy (default: default)")
    parser.add_argument("--estimates", choices=(COLUMN, PERFECT, NONE), help="durations people give")
    parser.add_argument("--sample", type=int, default=2000, help="forecasts to make at most, evenly spread")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay, forecast and compare. Raises BadTrace and UnknownPolicy."""
    started = time.perf_counter()
    policy = policy_named(options.policy)
    for name, value in (
        ("--nodes", options.nodes),
        ("--gpus-per-node", options.gpus_per_node),
        ("--sample", options.sample),
    ):
        if not 1 <= value <= MOST:
            raise BadTrace(f"{name} {value}: between 1 and {MOST} are needed.")
    jobs = read(options.jobs, options.nodes * options.gpus_per_node)
    source, estimates = replay.estimates_of(options, policy, jobs)
    boards = [options.gpus_per_node] * options.nodes
    count = Counter()
    replay.play(jobs, policy, boards, estimates, watch=count)
    watch = Forecaster(jobs, estimates, every=max(-(-count.waits // options.sample), 1))
    replay.play(jobs, policy, boards, estimates, watch=watch)
    return {
        "policy": options.policy,
        "estimates": source,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        "jobs": len(jobs.submit),
        "waited": count.waits,
        **figures(watch.shown),
        "unknown": watch.unknown,
        "wall_s": round(time.perf_counter() - started, 3),
    }


def figures(shown: list[Shown]) -> dict[str, Any]:
    """How often what came was before what was shown, and how wide that was."""
    over = [one for one in shown if one.wait_s >= 0]
    if not over:
        return {"samples": 0, "share_before_p90": None, "share_before_p50": None, "median_width_s": None}
    wait = np.array([one.wait_s for one in over])
    p50, p90 = np.array([one.p50_s for one in over]), np.array([one.p90_s for one in over])
    return {
        "samples": len(over),
        "share_before_p90": round(float((wait <= p90).mean()), 4),
        "share_before_p50": round(float((wait <= p50).mean()), 4),
        "median_width_s": int(np.median(p90 - p50)),
        "mean_width_s": int(np.mean(p90 - p50)),
        "median_wait_s": int(np.median(wait)),
        "median_p90_s": int(np.median(p90)),
    }


class Counter:
    """Looks on while the trace is played, and counts the arrivals that have to wait."""

    waits = 0

    def ended(self, queue: Queue, row: int, now: int) -> None:
        """Nothing to note."""

    def turned(self, queue: Queue, came: range, began: list[int], now: int) -> None:
        """Count who came and does not run."""
        self.waits += sum(int(queue.line.state[row]) == WAITING for row in came)


class Forecaster:
    """Looks on while the trace is played, forecasts every so many-th arrival that waits, and learns."""

    def __init__(self, jobs: Jobs, estimates: list[float] | None, *, every: int) -> None:
        count = len(jobs.submit)
        self.estimates = estimates
        self.every = every
        self.jobs = jobs
        self.history = History(len(jobs.teams), SMOOTHING, CURVES["mean"])
        self.form: Ints = np.array(
            [
                self.history.form_of(jobs.team[row], jobs.gpus[row], estimates[row] if estimates else 0.0)
                for row in range(count)
            ],
            np.int64,
        )
        self.shown: list[Shown] = []
        self.open: dict[int, Shown] = {}
        self.calibration = Calibration()
        self.renewed = -RENEW_S
        self.waits = self.unknown = 0

    def ended(self, queue: Queue, row: int, now: int) -> None:
        """Learn how long it ran."""
        self.history.note_end(int(self.form[row]), float(queue.line.age[row]))

    def turned(self, queue: Queue, came: range, began: list[int], now: int) -> None:
        """Note who started, forecast who came and has to wait."""
        for row in began:
            one = self.open.pop(row, None)
            if one is not None:
                one.wait_s = now - one.made
        for row in came:
            if queue.line.state[row] != WAITING:
                continue
            self.waits += 1
            if self.waits % self.every == 0:
                self._forecast(queue, row, now)

    def _forecast(self, queue: Queue, row: int, now: int) -> None:
        if self.history.is_due(now):
            live = np.flatnonzero((queue.line.state == WAITING) | (queue.line.state == RUNNING))
            ages = np.array([age_of(queue.line, int(one), now) for one in live], float)
            self.history.renew(now, self.form[live], ages)
        if now >= self.renewed + RENEW_S:
            self.calibration, self.renewed = calibrated(self._record(now)), now
        raw = imagined(queue, row, now, self._left(queue, now))
        if raw is None:
            self.unknown += 1
            return
        window = self.calibration.window(raw)
        one = Shown(row, now, raw, window.p50_s, window.p90_s)
        self.shown.append(one)
        self.open[row] = one

    def _record(self, now: int) -> list[Sample]:
        return [
            Sample(one.raw_s, one.wait_s, True, one.p90_s, one.made)
            if one.wait_s >= 0
            else Sample(one.raw_s, now - one.made, False, one.p90_s, one.made)
            for one in self.shown
        ]

    def _left(self, queue: Queue, now: int) -> Ints:
        """Seconds that each live row still has to run, by the median of what is known; others 0."""
        line = queue.line
        left = np.zeros(len(line.gpus), np.int64)
        live = np.flatnonzero((line.state == WAITING) | (line.state == RUNNING))
        age = line.age[live].astype(float)
        runs = line.state[live] == RUNNING
        age[runs] += np.maximum(now - line.since[live][runs] - line.owed[live][runs], 0)
        chance = self._chances(self.form[live])
        left[live] = np.maximum(remaining(chance, age, 0.5), 1.0) + line.owed[live]
        return left

    def _chances(self, forms: Ints) -> Floats:
        """Rows of probabilities per bin."""
        kinds, estimates = np.divmod(forms, BINS + 1)
        chance: Floats = self.history.prior[kinds]
        if self.estimates:
            known = np.array([self.history.errors.likelihood(b) for b in range(BINS)])
            likely = np.ones_like(chance)
            told = estimates > 0
            likely[told] = known[estimates[told] - 1]
            chance = chance * likely
        return chance


def remaining(chance: Floats, age: Floats, level: float) -> Floats:
    """The quantile of the seconds still to run, per row: given the chances per bin and the age reached."""
    total = np.maximum(chance.sum(1, keepdims=True), 1e-300)
    below = np.concatenate([np.zeros((len(chance), 1)), np.cumsum(chance / total, axis=1)], axis=1)
    found = np.empty(len(age))
    for row in range(len(age)):
        at = float(np.interp(np.log2(max(age[row], 0.5)), _EDGES, below[row]))
        wanted = at + level * (1.0 - at)
        found[row] = 2.0 ** float(np.interp(wanted, below[row], _EDGES)) - age[row]
    return found


def imagined(queue: Queue, row: int, now: int, left: Ints) -> float | None:
    """Seconds until the row begins when nobody else comes and everybody runs as long as ``left`` says.

    ``left`` are seconds still to run per row. None when it does not begin within the horizon.
    """
    line = Line._make(column.copy() for column in queue.line)
    floor = Floor._make(column.copy() for column in queue.floor)
    teams = queue.teams._replace(
        **{name: getattr(queue.teams, name).copy() for name in ("ratio", "rank", "used", "promised", "stuck")}
    )
    since: dict[int, int] = {}
    runs: dict[int, int] = {}
    ends: list[tuple[int, int, int]] = []
    for one in np.flatnonzero(line.state == RUNNING).tolist():
        heapq.heappush(ends, (now + int(left[one]), one, 0))
        runs[one], since[one] = 0, now
    began_at, step, tick = now, LOOK_S, now + LOOK_S
    guard, changes = queue.policy.guard, queue.policy.changes
    while now - began_at < HORIZON_S:
        if not ends and not changes:
            return None
        now = min(ends[0][0] if ends else tick, tick if changes else 1 << 60)
        while ends and ends[0][0] <= now:
            _, one, number = heapq.heappop(ends)
            if runs[one] == number:
                teams.used[line.team[one]] -= line.gpus[one]
                leave(line, floor, one, now)
        if now >= tick:
            step = max(LOOK_S, (now - began_at) // 20)
            tick = now + step
        began, evicted = queue.take_turn(line, floor, queue.rule, teams, queue.scratch, now, queue.out)
        for one in queue.out.evicted[:evicted].tolist():
            left[one] = left[one] - (now - since[one])
            left[one] += guard.large_cost_s if line.gpus[one] > guard.large_from else guard.small_cost_s
            left[one] = max(left[one], 1)
            runs[one] += 1
        for one in queue.out.began[:began].tolist():
            if one == row:
                return float(now - began_at)
            runs[one], since[one] = runs.get(one, 0) + 1, now
            heapq.heappush(ends, (now + int(left[one]), one, runs[one]))
        if began:
            close_ranks(line)
    return None
