"""How good start forecasts are: a trace through the product's turn, and what those who wait would have been told.

Whoever has to wait after the turn it came in is forecast as the product does it: the snapshot as it is published,
what it will probably come to (``outcome``), played forward (``forecast``), and corrected by the record of the
forecasts made before, of which only what has come by then counts. Lengths are predicted by the product's own
model, learned on the way. Compared is the first start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scheduler.engine.calibration import Calibration, Sample, calibrated
from scheduler.engine.forecast import forecast
from scheduler.engine.order import ORDERS
from scheduler.engine.outcome import outcome
from scheduler.engine.place.policy import policy_named
from scheduler.engine.policy import Backfill
from scheduler.replay import queue
from scheduler.replay.jobs import COLUMN, LEARNED, MOST, NONE, PERFECT, Jobs, estimates_from, read
from scheduler.replay.trace_files import BadTrace
from scheduler.replay.turns import TICK_S, Cluster, Turns

HORIZON_S = 14 * 86_400  # as the portal asks
RENEW_S = 60  # how often the product looks at the record again


@dataclass(slots=True)
class ShownForecast:
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
    parser.add_argument("--policy", default="default", help=f"order: {', '.join(sorted(ORDERS))}")
    parser.add_argument(
        "--estimates",
        choices=(LEARNED, COLUMN, PERFECT, NONE),
        default=LEARNED,
        help="what is predicted: by the product's model, learned on the way (default), or as for queue",
    )
    parser.add_argument("--consent", choices=queue.CONSENTS, default="all", help="who may be preempted")
    parser.add_argument(
        "--notice", type=int, default=120, help="seconds from the notice to the end of a lease"
    )
    parser.add_argument("--backfill", choices=get_args(Backfill), default="easy", help="promised starts")
    parser.add_argument(
        "--keep-short",
        type=float,
        default=0.0,
        help="part of the fleet that long requests which cannot be stopped leave free (0)",
    )
    parser.add_argument(
        "--keep-apart",
        type=float,
        default=0.0,
        help="what it costs, in idle boards, to put a short request beside a board of a long one that cannot be "
        "stopped (0)",
    )
    parser.add_argument(
        "--installed", action="store_true", help="the rules of a new installation but the order"
    )
    parser.add_argument("--place", default="binpack", help="placement policy (default: binpack)")
    parser.add_argument("--every", type=int, default=1, help="forecast every so many-th who has to wait")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay, forecast and compare. Raises BadTrace and UnknownPolicy."""
    # It brings the training library, which no web process loads; the recorder above is the lab's too.
    from scheduler.replay.predict import LengthLearner

    started, cpu = time.perf_counter(), time.process_time()
    queue.check(options)
    if not 1 <= options.every <= MOST:
        raise BadTrace(f"--every {options.every}: between 1 and {MOST} are needed.")
    policy, _ = queue.rules_of(options)
    policy_named(policy.place)
    cluster = Cluster(options.nodes, options.gpus_per_node)
    jobs = read(options.jobs, cluster.nodes * cluster.gpus)
    watch = ForecastRecorder(jobs, every=options.every)
    is_learned = options.estimates == LEARNED
    played = Turns(
        jobs,
        policy,
        cluster,
        estimates=None if is_learned else estimates_from(options.jobs, jobs, options.estimates),
        is_preemptible=options.consent == "all",
        predictor=LengthLearner(jobs) if is_learned else None,
        watches=(watch,),
    ).play()
    return {
        "policy": options.policy,
        "estimates": options.estimates,
        "consent": options.consent,
        "notice_s": policy.preempting.grace_s,
        "backfill": policy.backfill,
        "keep_short": policy.keep_short,
        "keep_apart": policy.keep_apart,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        **queue.figures(jobs, played, cluster),
        "waited": watch.waits,
        **figures(watch.shown),
        "unknown": watch.unknown,
        "certain": len(watch.certain_kept),
        "certain_kept": sum(watch.certain_kept),
        "cpu_s": round(time.process_time() - cpu, 3),
        "wall_s": round(time.perf_counter() - started, 3),
    }


def figures(shown: Sequence[ShownForecast]) -> dict[str, Any]:
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


class ForecastRecorder:
    """Looks on while the trace is played, and forecasts every so many-th who came and has to wait.

    With ``thin`` above zero it forecasts every second one after so many forecasts, every third one after twice as
    many, and so on, so that forecasts of a long queue cost little beside its turns. Who came before ``since`` seconds
    is not forecast.
    """

    def __init__(self, jobs: Jobs, *, every: int, thin: int = 0, since: int = 0) -> None:
        self.jobs = jobs
        self.every = every
        self.thin = thin
        self.since = since
        self.shown: list[ShownForecast] = []
        self.open: dict[int, ShownForecast] = {}
        self.certain: dict[int, int] = {}
        self.certain_kept: list[bool] = []
        self.calibration = Calibration()
        self.renewed = -RENEW_S
        self.waits = self.unknown = 0

    def turned(self, turns: Turns, came: range, began: Sequence[int], now: int) -> None:
        """Note who started, forecast who came and has to wait."""
        for row in began:
            one = self.open.pop(row, None)
            if one is not None:
                one.wait_s = now - one.made
            if row in self.certain:
                self.certain_kept.append(now <= self.certain.pop(row) + TICK_S)
        runs = set(began)
        waits = [row for row in came if row not in runs and self.jobs.submit[row] >= self.since]
        every = self.every + (len(self.shown) // self.thin if self.thin else 0)
        asked = [row for number, row in enumerate(waits, self.waits + 1) if number % every == 0]
        self.waits += len(waits)
        if asked:
            self._forecast(turns, asked, now)

    def _forecast(self, turns: Turns, rows: Sequence[int], now: int) -> None:
        if now >= self.renewed + RENEW_S:
            self.calibration, self.renewed = calibrated(self._record(now)), now
        probable = outcome(turns.snapshot(now))
        claims = [claim for claim in probable.queue if claim.id - 1 in rows]
        found = forecast(probable, turns.policy, claims, horizon_s=HORIZON_S)
        for claim in claims:
            starts_at = found[claim.id].starts_at
            raw = -1.0 if starts_at is None else (starts_at - probable.taken_at).total_seconds()
            if found[claim.id].is_certain:
                self.certain[claim.id - 1] = now + int(raw)
                continue
            if raw <= 0:
                self.unknown += raw < 0
                continue
            window = self.calibration.window(raw)
            row = claim.id - 1
            self.open[row] = one = ShownForecast(row, now, raw, window.p50_s, window.p90_s)
            self.shown.append(one)

    def _record(self, now: int) -> list[Sample]:
        return [
            Sample(one.raw_s, one.wait_s, True, one.p50_s, one.p90_s, one.made)
            if one.wait_s >= 0
            else Sample(one.raw_s, now - one.made, False, one.p50_s, one.p90_s, one.made)
            for one in self.shown
        ]
