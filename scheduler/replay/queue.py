"""Waiting under the product's rules: jobs of a trace on N nodes x G GPUs, every turn decided by ``plan``.

Whole GPUs, no sharing, no quotas. Without further options everybody may be preempted, without notice, and no start
is promised, so that figures compare with published ones; ``--consent``, ``--notice`` and ``--backfill`` say
otherwise. A wait is all time spent pending; the 40 s (more than 8 GPUs: 60 s) that a preemption costs is run time.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scheduler.engine.errors import UnknownPolicy
from scheduler.engine.order import ORDERS
from scheduler.engine.place.policy import policy_named
from scheduler.engine.policy import Backfill, PolicyRules, Preempting
from scheduler.replay.jobs import COLUMN, MOST, NONE, PERFECT, Jobs, drawn, estimates_from, read
from scheduler.replay.trace_files import BadTrace
from scheduler.replay.turns import Cluster, PlayedQueue, Turns

BY_SCORE = Preempting(by_score=True, least_run_s=300)
_STRICT = replace(BY_SCORE, factor=1.0, least_run_s=0, most_evictions=1000)
# Yardsticks by the name of the replay: their order, who may take what, and whether they know the future.
YARDSTICKS: dict[str, tuple[str, Preempting, bool]] = {
    "fifo": ("blocking_fifo", Preempting(), False),
    "sjf": ("sjf", Preempting(), True),
    "srtf": ("srtf", _STRICT, True),
    "srtf_aged": ("srtf_aged", BY_SCORE, True),
    "two_level": ("two_level", _STRICT, False),
    "attained": ("attained", replace(BY_SCORE, factor=2.0, least_run_s=60, most_evictions=1000), False),
}
# What a new installation has, with preemption by score for those who consent.
INSTALLED = PolicyRules(preempting=Preempting(by_score=True))
CONSENTS = ("all", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    known = ", ".join(sorted({*YARDSTICKS, *ORDERS}))
    parser.add_argument("--jobs", type=Path, required=True, help="CSV: seq,submit_s,duration_s,gpus[,vc,…]")
    parser.add_argument("--nodes", type=int, default=64, help="nodes of the cluster")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of a node")
    parser.add_argument("--policy", default="default", help=f"order or yardstick: {known} (default: default)")
    parser.add_argument(
        "--estimates",
        choices=(COLUMN, PERFECT, NONE),
        help="what stands for the product's prediction: the column est_duration_s (default where it exists), "
        "the true durations, or nothing; yardsticks that know the future need the true ones",
    )
    parser.add_argument(
        "--draw", type=int, help="draw the estimates anew with the column's errors, by this seed"
    )
    parser.add_argument("--consent", choices=CONSENTS, default="all", help="who may be preempted")
    parser.add_argument("--notice", type=int, default=0, help="seconds from the notice to the end of a lease")
    parser.add_argument("--backfill", choices=get_args(Backfill), default="none", help="promised starts")
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
        "--installed",
        action="store_true",
        help="the rules of a new installation but the order: notice, promised starts, placement, minimum run",
    )
    parser.add_argument("--place", default="binpack", help="placement policy (default: binpack)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay and measure. Raises BadTrace and UnknownPolicy."""
    started, cpu = time.perf_counter(), time.process_time()
    check(options)
    policy, knows = rules_of(options)
    policy_named(policy.place)
    cluster = Cluster(options.nodes, options.gpus_per_node)
    jobs = read(options.jobs, cluster.nodes * cluster.gpus)
    source = options.estimates or (PERFECT if knows else COLUMN if jobs.estimate else NONE)
    if knows and source != PERFECT:
        raise BadTrace(
            f"--policy {options.policy} knows the true durations: --estimates {source} makes no sense."
        )
    estimates = estimates_from(options.jobs, jobs, source)
    if options.draw is not None and source == COLUMN:
        estimates = drawn(jobs, options.draw)
    turns = Turns(
        jobs,
        policy,
        cluster,
        estimates=estimates,
        is_told=knows,
        is_preemptible=options.consent == "all",
    )
    played = turns.play()
    return {
        "policy": options.policy,
        "estimates": source,
        "draw": options.draw,
        "consent": options.consent,
        "notice_s": policy.preempting.grace_s,
        "backfill": policy.backfill,
        "place": policy.place,
        "keep_short": policy.keep_short,
        "keep_apart": policy.keep_apart,
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        **figures(jobs, played, cluster),
        "turns": played.turns,
        "cpu_s": round(time.process_time() - cpu, 3),
        "wall_s": round(time.perf_counter() - started, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def check(options: argparse.Namespace) -> None:
    """Refuse impossible sizes. Raises BadTrace."""
    limits = (
        ("--nodes", options.nodes, 1),
        ("--gpus-per-node", options.gpus_per_node, 1),
        ("--notice", options.notice, 0),
    )
    for name, value, least in limits:
        if not least <= value <= MOST:
            raise BadTrace(f"{name} {value}: between {least} and {MOST} are needed.")


def rules_of(options: argparse.Namespace) -> tuple[PolicyRules, bool]:
    """The policy that the options name, and whether it knows the future. Raises UnknownPolicy."""
    order, preempting, knows = YARDSTICKS.get(options.policy, (options.policy, BY_SCORE, False))
    if options.policy not in YARDSTICKS and order not in ORDERS:
        raise UnknownPolicy("order", order, sorted({*YARDSTICKS, *ORDERS}))
    policy = PolicyRules(
        place=options.place,
        backfill=options.backfill,
        preempting=replace(preempting, grace_s=options.notice),
    )
    if options.installed:
        policy = INSTALLED
    return replace(policy, order=order, keep_short=options.keep_short, keep_apart=options.keep_apart), knows


def figures(jobs: Jobs, played: PlayedQueue, cluster: Cluster) -> dict[str, Any]:
    """What is reported. Utilisation: useful GPU-seconds over those of the cluster, first arrival to last end."""
    submit, duration, gpus = np.array(jobs.submit), np.array(jobs.duration), np.array(jobs.gpus)
    wait, ended, team_of = np.array(played.waited), np.array(played.ended), np.array(jobs.team)
    jct = ended - submit
    span = max(int(ended.max() - submit.min()), 1)
    slowdowns = []
    for team in np.unique(team_of):
        own = team_of == team
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
        "max_preemptions_of_one_job": max(played.evictions),
        "utilisation": round(float((gpus * duration).sum()) / (cluster.nodes * cluster.gpus * span), 4),
        "worst_team_slowdown": round(max(slowdowns), 3),
    }
