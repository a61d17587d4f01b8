"""What the engine must do and what it does: every row through ``plan``, as the docs measure it.

``TRACES`` names the folder of the public traces; without it the samples in ``tests/data`` are played, which says
nothing about the limits. ``ROWS`` are functions that give the rows of one part each; a part more is a function more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.replay import forecast, queue
from tools.bench import curve

WEEK, OTHER_WEEK = "philly_w1_20171001.csv.gz", "philly_20171108_1w.csv.gz"
SAMPLE = Path("tests/data/philly/jobs.csv")
SAMPLE_NODES = 6
DRAWS = (1, 2, 3)
KEEP_SHORT = "0.2"
FIFO, SJF = 24397.49, 2113.65


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A line of the table: what is measured, what it must be and should be, and what it is."""

    name: str
    must: str
    aim: str
    measured: dict[str, Any]


def queue_rows(traces: Path | None) -> Iterator[TargetRow]:
    """Waiting on the Philly weeks, by the options of ``scheduler.replay queue`` (docs/queue.md)."""
    if traces is None:
        yield from _sampled()
        return
    week, other = traces / WEEK, traces / OTHER_WEEK
    limits = {64: ("300", "250"), 52: ("1,000", "830"), 40: ("2,700", "2,050")}
    for nodes, (must, aim) in limits.items():
        yield _row(f"mean wait, {nodes} nodes, estimates column", must, aim, week, nodes)
        yield _row(
            f"mean wait, {nodes} nodes, estimates column, rules of a new installation", "-", "-", week, nodes,
            "--installed",
        )  # fmt: skip
    limits = {64: ("320", "262"), 52: ("1,050", "890"), 40: ("3,000", "2,400")}
    for nodes, (must, aim) in limits.items():
        yield _row(f"mean wait, {nodes} nodes, no estimates", must, aim, week, nodes, "--estimates", "none")
    for draw in DRAWS:
        yield _row(f"p99.9, 64 nodes, draw {draw}", "60,000", "45,000", week, 64, "--draw", str(draw))
    limits = {64: ("1,900", "1,500"), 52: ("6,000", "5,000"), 40: ("7,000", "6,000")}
    alone = ("--consent", "none", "--keep-short", KEEP_SHORT)
    for nodes, (must, aim) in limits.items():
        yield _row(f"mean wait, {nodes} nodes, nobody preemptible", must, aim, week, nodes, *alone)
    for nodes, must, aim in ((64, "1.15", "1.05"), (40, "1.6", "1.35")):
        ours = _played(other, nodes, "--estimates", "none")
        theirs = _played(other, nodes, "--policy", "srtf_aged")
        ratio = round(ours["mean_wait_s"] / max(theirs["mean_wait_s"], 0.01), 3)
        told = {"ratio": ratio, "ours_s": ours["mean_wait_s"], "clairvoyant_s": theirs["mean_wait_s"]}
        yield TargetRow(
            f"week of 2017-11-08 against clairvoyant SRTF with ageing, {nodes} nodes", must, aim, told
        )
    yield _row("SJF with true durations, 64 nodes", f"{SJF}", f"{SJF}", week, 64, "--policy", "sjf")
    yield _row("FIFO, 64 nodes", f"{FIFO}", f"{FIFO}", week, 64, "--policy", "fifo")


def _sampled() -> Iterator[TargetRow]:
    for name, options in (
        ("estimates column", ()),
        ("no estimates", ("--estimates", "none")),
        ("nobody preemptible", ("--consent", "none", "--keep-short", KEEP_SHORT)),
        ("rules of a new installation", ("--installed",)),
        ("clairvoyant SRTF with ageing", ("--policy", "srtf_aged")),
        ("SJF with true durations", ("--policy", "sjf")),
        ("FIFO", ("--policy", "fifo")),
    ):
        yield _row(f"sample, {SAMPLE_NODES} nodes, {name}", "-", "-", SAMPLE, SAMPLE_NODES, *options)


def _row(name: str, must: str, aim: str, jobs: Path, nodes: int, *options: str) -> TargetRow:
    found = _played(jobs, nodes, *options)
    keys = ("mean_wait_s", "p99_wait_s", "p999_wait_s", "preemptions", "worst_team_slowdown", "wall_s")
    return TargetRow(name, must, aim, {key: found[key] for key in keys})


def _played(jobs: Path, nodes: int, *options: str) -> dict[str, Any]:
    known = argparse.ArgumentParser()
    queue.add_arguments(known)
    return queue.run(known.parse_args(["--jobs", str(jobs), "--nodes", str(nodes), *options]))


# What of ``tools.bench.curve`` is played here: the workloads of the trace and the mix that refuses earliest.
PLACED = ("default", "gpushare40", "multigpu20", "gpuspec20", "whole nodes 45%, 10%")
RUNS = 2


def placement_rows(traces: Path | None) -> Iterator[TargetRow]:
    """Boards given out beside the published rule, two runs of each workload, and decisions per second."""
    runs: dict[str, list[curve.Run]] = {}
    for name, trace in curve.workloads(traces):
        if (traces is None or name.startswith(PLACED)) and len(runs.setdefault(name, [])) < RUNS:
            runs[name].append(curve.played(trace))
    for name, known in runs.items():
        found = curve.row(known)
        yield TargetRow(
            f"gain over FGD at 130 %, {name}", "+0.9 on the mean of the trace's", "+1.3", _of(found, "at 130")
        )
        yield TargetRow(f"gain over FGD at 100 %, {name}", "0", "+0.3", _of(found, "at 100"))
        yield TargetRow(
            f"first refusal after FGD's, {name}",
            "-1",
            "0",
            _of(found, "first refusal", "worst first refusal"),
        )
        yield TargetRow(
            f"decisions beside FGD's, {name}", "1", "3", _of(found, "decisions per second", "times FGD's")
        )


def forecast_rows(traces: Path | None) -> Iterator[TargetRow]:
    """How many starts came before P90, and how wide the windows were, by ``scheduler.replay forecast``."""
    weeks = [("sample", SAMPLE, SAMPLE_NODES, 1)]
    if traces is not None:
        weeks = [("2017-10-01", traces / WEEK, 64, 10), ("2017-11-08", traces / OTHER_WEEK, 48, 10)]
    for name, jobs, nodes, every in weeks:
        for consent in queue.CONSENTS:
            known = argparse.ArgumentParser()
            forecast.add_arguments(known)
            options = [
                "--jobs",
                str(jobs),
                "--nodes",
                str(nodes),
                "--consent",
                consent,
                "--every",
                str(every),
            ]
            found = forecast.run(known.parse_args(options))
            measured = _of(found, "share_before_p90", "share_before_p50", "samples", "certain", "wall_s")
            measured["median_width_s"] = found.get("median_width_s")
            yield TargetRow(
                f"starts before P90, {name}, {nodes} nodes, consent {consent}", "0.88-0.92", "same", measured
            )


def _of(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: found[key] for key in keys}


# In order, the rows of each part: given the folder of the traces, or None for the samples.
ROWS: tuple[Callable[[Path | None], Iterable[TargetRow]], ...] = (queue_rows, placement_rows, forecast_rows)


def measure() -> dict[str, Any]:
    """All rows, by name; each is told on standard error as soon as it is there."""
    folder = os.environ.get("TRACES")
    found: dict[str, Any] = {}
    for rows in ROWS:
        for row in rows(Path(folder) if folder else None):
            found[row.name] = {"must": row.must, "aim": row.aim, **row.measured}
            print(f"{row.name}: {row.measured}", file=sys.stderr, flush=True)
    return found
