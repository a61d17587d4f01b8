"""``python -m tools.bench [NAME …] [--repeat N] [--json]``: all by default, names in ``BENCHES``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from tools.bench import (
    agent,
    curve,
    cycle,
    engine,
    forecast,
    idle,
    jobs,
    kills,
    lab,
    latency,
    live,
    machine,
    money,
    night,
    pages,
    pairs,
    placement,
    rows,
    slurm,
    slurm_bill,
    soak,
    stages,
    startup,
    throughput,
    work,
)

BENCHES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "latency": ("submit to active, idle cluster, 2 × 8 whole A100, simulated driver", latency.measure),
    "throughput": ("1,000 single-GPU requests at once on 16 GPUs, released when active", throughput.measure),
    "stages": ("one lease's way through the portal in one process: CPU and queries", stages.measure),
    "rows": ("objects by SQL written once beside querysets; a page far down a list", rows.measure),
    "startup": ("first and second start to the first page, memory 10 s after it", startup.measure),
    "engine": (
        "the figures the engine is held to, through its plan: Philly traces (folder in TRACES) or samples",
        engine.measure,
    ),
    "placement": ("openb trace (folder in TRACES), published rule and ours", placement.measure),
    "curve": (
        "placement at 70 to 130 % of demand beside FGD: openb (folder in TRACES) and mixes made from it",
        curve.measure,
    ),
    "cycle": (
        "one turn: 10,000 GPUs, 5,000 waiting, about 100 grants, rows read and committed",
        cycle.measure,
    ),
    "forecast": (
        "forecast and counter-offers of 100 unsubmitted requests, 1,000 GPUs, 5,000 waiting",
        forecast.measure,
    ),
    "lab": (
        "the lab plays 30,000 requests of a month on 512 GPUs, twice: time, memory, same bytes",
        lab.measure,
    ),
    "night": ("a night of 6 × 8 simulated H100 with and without sleep: energy and waiting", night.measure),
    "slurm": (
        "a lease as a job of a real Slurm beside sbatch alone: submit, flood, idle agent",
        slurm.measure,
    ),
    "slurm-bill": (
        "300 leases on a real Slurm with faults: the bill beside sacct, each difference with its cause",
        slurm_bill.measure,
    ),
    "agent": (
        "one node's agent on 8 × 7 slices: a round, slow cards, ends, a second of each second",
        agent.measure,
    ),
    "soak": ("10,000 stories of one node, with crashes of its agent at every kind of change", soak.measure),
    "work": (
        "in a lease: echo of a key, 100 MB drawn, 100 floods that nobody draws, JupyterLab drawn, ends of streams",
        work.measure,
    ),
    "jobs": (
        "batch jobs: 1,000 of a second on 16 slots, logs included; a line until it is read",
        jobs.measure,
    ),
    "idle": ("a look at 1,000 running leases for idle ones: told, spared, unchanged", idle.measure),
    "money": (
        "a month's money: open month on a page, close, exports; BENCH_RECORDS (100,000) and BENCH_TEAMS (500)",
        money.measure,
    ),
    "pages": (
        "server time and queries of every page and list: 1,000 GPUs, 200 teams, 5,000 waiting; BENCH_LEASES (100,000)",
        pages.measure,
    ),
    "kills": (
        "numbered lines of 8 jobs while agents, gateway and web are killed 50 times: lost or doubled in the store",
        kills.measure,
    ),
    "pairs": (
        "12 programs alone and each beside each on a real device by turns; BENCH_PAIR_S (20); takes PyTorch",
        pairs.measure,
    ),
    "live": (
        "live frames: 100 nodes, 20 browsers, 10 s; a minute of 10,000 slices stored; 10,000 GPUs on a map in Chromium",
        live.measure,
    ),
}


def main() -> None:
    options = _options()
    found: dict[str, Any] = {"machine": machine.describe(), "benches": []}
    if not options.json:
        _print("machine", found["machine"])
    for name in [n for n in BENCHES if n in options.names] * options.repeat:
        title, measure = BENCHES[name]
        before = machine.load()
        figures = measure()
        row = {"name": name, "what": title, "command": f'make bench ARGS="{name}"', "load_before": before}
        found["benches"].append(row | {"figures": figures})
        if not options.json:
            _print(f"{name}: {title}; load {before}", figures)
    if options.json:
        json.dump(found, sys.stdout)
        print()


def _options() -> argparse.Namespace:
    known = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    known.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    known.add_argument("--repeat", type=int, default=1, help="measure each so often (1)")
    known.add_argument("--json", action="store_true", help="print one JSON object")
    options = known.parse_args()
    if wrong := set(options.names) - set(BENCHES):
        known.error(f"there is no benchmark {min(wrong)!r}; there are {', '.join(BENCHES)}")
    options.names = options.names or list(BENCHES)
    return options


def _print(title: str, figures: dict[str, Any]) -> None:
    print(f"\n{title}")
    width = max(36, *map(len, figures))
    for name, value in figures.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"  {name:<{width}} {text}", flush=True)


if __name__ == "__main__":
    main()
