"""How well lengths are predicted: jobs of a trace in order, each guessed with what had ended by then.

The model is learned anew every so many hours of the trace from the jobs that have ended; what it then says of
the jobs that arrive until the next time is compared with how long they ran, beside the estimate column and the
team's average. Errors are absolute logarithms, printed as factors: 2 is twice too long or twice too short.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.engine.columns import Floats, Ints
from scheduler.engine.learning.durations import HALF
from scheduler.engine.learning.habits import Habits, Kind, Past, walked
from scheduler.replay.jobs import Jobs, read
from scheduler.replay.tables import BadTrace
from scheduler.training import JUDGED, P50, P90, Table, fit, judged

LEAST = 200  # fewer ended jobs teach nothing
MOST_GPUS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument("--jobs", type=Path, required=True, help="CSV: seq,submit_s,duration_s,gpus[,vc,…]")
    parser.add_argument("--every-h", type=int, default=6, help="hours of the trace between trainings")
    parser.add_argument("--no-estimates", action="store_true", help="do not look at the estimate column")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Walk forward and compare. Raises BadTrace."""
    started = time.perf_counter()
    if not 1 <= options.every_h <= 10_000:
        raise BadTrace(f"--every-h {options.every_h}: between 1 and 10000 are needed.")
    jobs = read(options.jobs, MOST_GPUS)
    estimates = None if options.no_estimates else jobs.estimate
    past = [_past(jobs, estimates, row) for row in range(len(jobs.submit))]
    known = walked(past, Habits())
    table = Table(known)
    made = np.array([one.past.made_s for one in known])
    over = np.array([one.past.over_s for one in known])
    asked: list[int] = []
    p50: list[float] = []
    p90: list[float] = []
    trainings = 0
    for since in range(0, int(made[-1]) + 1, options.every_h * 3600):
        ended = np.flatnonzero(over <= since)
        coming = np.flatnonzero((made >= since) & (made < since + options.every_h * 3600))
        if len(ended) < LEAST or not len(coming):
            continue
        half, most = guesses(table, ended, coming)
        asked += coming.tolist()
        p50 += half.tolist()
        p90 += most.tolist()
        trainings += 1
    found = judged([known[at] for at in asked], np.array(p50), np.array(p90), is_bound=False)
    return {
        "jobs": len(past),
        "judged": found["judged"],
        "trainings": trainings,
        "below_p90": found["below_p90"],
        **{name: _factors(found[name]) for name in ("predicted", "asked", "team")},
        "wall_s": round(time.perf_counter() - started, 3),
    }


def guesses(table: Table, ended: Ints, coming: Ints) -> tuple[Floats, Floats]:
    """Logarithms of the median and the ninth decile of the coming rows, learned from those that have ended.

    What the ninth decile misses on the last fifth of these is added to it, as in the product's training.
    """
    cut = max(int(len(ended) * (1.0 - JUDGED)), 1)
    before, later = ended[:cut], ended[cut:]
    half = fit(table.rows[ended], table.off[ended], P50).predict(table.rows[coming])
    most = fit(table.rows[before], table.off[before], P90)
    missed = float(np.quantile(table.off[later] - most.predict(table.rows[later]), P90))
    return table.habit[coming] + HALF * half, table.habit[coming] + most.predict(table.rows[coming]) + missed


def _past(jobs: Jobs, estimates: list[float] | None, row: int) -> Past:
    """A job as if it had started when it was submitted: only its length counts here."""
    at, ran = jobs.submit[row], jobs.duration[row]
    kind = Kind(
        jobs.team[row],
        size_milli=jobs.gpus[row] * 1000,
        asked_s=max(round(estimates[row]), 1) if estimates and estimates[row] > 0 else 0,
        hour=at // 3600 % 24,
        weekday=at // 86_400 % 7,
    )
    return Past(kind, at, at + ran, ran)


def _factors(pair: dict[str, float] | None) -> dict[str, float] | None:
    return None if pair is None else {name: round(math.exp(value), 3) for name, value in pair.items()}
