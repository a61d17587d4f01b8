"""Placement quality and speed on the public openb trace, through ``scheduler.replay``.

The folder of the trace is named by ``TRACES``; without it the small part in ``tests/data/openb`` is used,
which says nothing about the published figures.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import mean, median
from typing import Any

from scheduler.replay import gang, mig, openb

WORKLOADS = ("default", "gpushare40", "multigpu20", "gpuspec20")
SEEDS = (42, 43, 44, 45, 46)
# FGD and best fit know the pod list, ours learns as the product does.
POLICIES = ("fgd", "default")
SAMPLE = Path("tests/data/openb")


def measure() -> dict[str, Any]:
    """Mean over the seeds of every workload: the published rule, which knows the pod list, and ours, which learns."""
    folder = os.environ.get("TRACES")
    if folder is None:
        return {"sample": {policy: _replay(policy, _sample()) for policy in POLICIES}}
    traces = Path(folder)
    found: dict[str, Any] = {}
    for workload in WORKLOADS:
        for policy in POLICIES:
            runs = [_replay(policy, _files(traces, workload, seed)) for seed in SEEDS]
            found[f"{workload}, {policy}"] = {
                "percent_at_130": round(mean(run["allocated_percent_at_130"] for run in runs), 3),
                "first_refusal": round(mean(run["first_refusal_at_percent"] or 130 for run in runs), 1),
                "per_s": round(median(run["decisions_per_second"] for run in runs)),
            }
    return found | _departures(traces) | _large(traces) | _others(traces)


def _departures(traces: Path) -> dict[str, Any]:
    found = {}
    for workload in ("default", "gpushare40", "gpuspec20"):
        files = [_files(traces, workload, seed) for seed in SEEDS]
        found[f"{workload} with departures, GPU-time served %"] = {
            policy: round(mean(_replay(policy, f, "--departures")["served_percent"] for f in files), 3)
            for policy in ("best_fit", *POLICIES)
        }
    return found


def _others(traces: Path) -> dict[str, Any]:
    """One gang of 64 on 99,392 GPUs, and MIG slices at an offered load of 0.9."""
    gangs = _run(gang, ["--traces", str(traces)])
    found: dict[str, Any] = {"gangs of 64": {k: gangs[k] for k in ("gpus", "placed", "p50_ms", "p99_ms")}}
    for row in _run(mig, ["--loads", "0.9"])["results"]:
        keys = ("compute_served_percent", "requests_accepted_percent", "decisions_per_second")
        found[f"MIG at 0.9, {row['policy']}"] = {key: row[key] for key in keys}
    return found


def _large(traces: Path) -> dict[str, Any]:
    runs = {p: _replay(p, _files(traces, "default", 42), "--scale", "16") for p in POLICIES}
    keys = ("gpus", "allocated_percent_at_130", "decisions_per_second", "peak_rss_mb")
    return {f"16 clusters in one, {p}": {key: run[key] for key in keys} for p, run in runs.items()}


def _files(traces: Path, workload: str, seed: int) -> dict[str, Path]:
    return {
        "nodes": traces / "openb_nodes_gpu.csv",
        "pods": traces / f"openb_pods_{workload}.csv.gz",
        "order": traces / "openb_order" / f"{workload}_seed{seed}.txt.gz",
        "rank": traces / "openb_node_rank" / f"{workload}_seed{seed}.csv.gz",
    }


def _sample() -> dict[str, Path]:
    return {
        name: SAMPLE / f"{name}{'.txt' if name == 'order' else '.csv'}"
        for name in ("nodes", "pods", "order", "rank")
    }


def _replay(policy: str, files: dict[str, Path], *more: str) -> dict[str, Any]:
    words = ["--policy", policy, *more, *([] if policy == "default" else ["--knows"])]
    for name, path in files.items():
        words += [f"--{name}", str(path)]
    return _run(openb, words)


def _run(experiment: Any, words: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    experiment.add_arguments(parser)
    answer: dict[str, Any] = experiment.run(parser.parse_args(words))
    return answer


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
