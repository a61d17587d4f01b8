"""How well lengths are predicted: jobs of a trace in order, each guessed by the product's model of that time.

The model is learned as the product learns it (``scheduler.training``), every so many hours of the trace from the
jobs that have ended; what it then says of the jobs that arrive until the next time is compared with how long they
ran, beside the estimate column and the team's average. Errors are absolute logarithms, printed as factors: 2 is
twice too long or twice too short.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.engine.columns import Floats
from scheduler.engine.learning.durations import Durations
from scheduler.engine.learning.habits import EndedRequest, Habits, SubmittedRequest, walked
from scheduler.engine.learning.lengths import LEAST
from scheduler.replay.jobs import Jobs, read
from scheduler.replay.trace_files import BadTrace
from scheduler.training import judged, learn

NEWEST = 20_000  # the product learns from no more
AT_ONCE = 512
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
    kinds = kinds_of(jobs, None if options.no_estimates else jobs.estimate)
    # As if each had started when it was submitted: only lengths count here.
    past = [
        EndedRequest(kind, at, at + ran, max(ran, 1))
        for kind, at, ran in zip(kinds, jobs.submit, jobs.duration, strict=True)
    ]
    known = walked(past, Habits())
    step_s = options.every_h * 3600
    asked: list[int] = []
    p50: list[Floats] = []
    p90: list[Floats] = []
    for since in range(0, int(known[-1].past.made_s) + 1, step_s):
        ended = [one.past for one in known if one.past.over_s <= since]
        coming = [at for at, one in enumerate(known) if since <= one.past.made_s < since + step_s]
        if len(ended) < LEAST or not coming:
            continue
        model, _ = learn(ended)
        half, most = model.logs([known[at].past.kind for at in coming])
        asked += coming
        p50.append(half)
        p90.append(most)
    nothing = np.zeros(0)
    found = judged(
        [known[at] for at in asked],
        np.concatenate([nothing, *p50]),
        np.concatenate([nothing, *p90]),
        is_bound=False,
    )
    return {
        "jobs": len(past),
        "judged": found["judged"],
        "trainings": len(p50),
        "below_p90": found["below_p90"],
        **{name: _factors(found[name]) for name in ("predicted", "asked", "team")},
        "wall_s": round(time.perf_counter() - started, 3),
    }


class LengthLearner:
    """The product's model of lengths for jobs of a trace that are played; it knows nothing before it has learned."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._kinds = kinds_of(jobs)
        self._model: Durations | None = None
        self._known: dict[int, int] = {}

    def learn(self, ended: Sequence[tuple[int, int, int]]) -> None:
        """Learn from the newest jobs that have ended: row, end and seconds run."""
        submit = self._jobs.submit
        past = [
            EndedRequest(self._kinds[row], submit[row], at, max(ran, 1)) for row, at, ran in ended[-NEWEST:]
        ]
        self._model, _ = learn(past)
        self._known.clear()

    def guess(self, rows: Sequence[int]) -> list[int]:
        """What half of such jobs stay below, in seconds; 0 before anything was learned."""
        if self._model is None:
            return [0] * len(rows)
        new = [row for row in rows if row not in self._known]
        if len(new) == 1:
            # A model says the same of a job whenever it is asked, and many at once are asked sooner.
            new = list(range(new[0], min(new[0] + AT_ONCE, len(self._kinds))))
        guesses = self._model.guess([self._kinds[row] for row in new])
        self._known |= {row: one.likely_s for row, one in zip(new, guesses, strict=True)}
        return [self._known[row] for row in rows]


def kinds_of(jobs: Jobs, asked: Sequence[float] | None = None) -> list[SubmittedRequest]:
    """What is known of each job when it is made; ``asked`` is how long people say that it will take."""
    return [
        SubmittedRequest(
            jobs.team[row],
            size_milli=jobs.gpus[row] * 1000,
            asked_s=max(round(asked[row]), 1) if asked and asked[row] > 0 else 0,
            hour=at // 3600 % 24,
            weekday=at // 86_400 % 7,
        )
        for row, at in enumerate(jobs.submit)
    ]


def _factors(pair: dict[str, float] | None) -> dict[str, float] | None:
    return None if pair is None else {name: round(math.exp(value), 3) for name, value in pair.items()}
