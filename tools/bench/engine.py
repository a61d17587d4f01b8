"""What the engine must do and what it does: every row through ``plan``, as the docs measure it.

``TRACES`` names the folder of the public traces; without it the samples in ``tests/data`` are played, which says
nothing about the limits. Parts are independent of each other and run in two processes, the longest first.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from scheduler.replay import forecast, queue
from tools.bench import curve, cycle, latency

PROCESSES = 2
WEEK, OTHER_WEEK = "philly_w1_20171001.csv.gz", "philly_20171108_1w.csv.gz"
SAMPLE = Path("tests/data/philly/jobs.csv")
SAMPLE_NODES = 6
DRAWS = (1, 2, 3)
ALONE = ("--consent", "none", "--keep-short", "0.18", "--keep-apart", "1")
NO_ESTIMATES = ("--estimates", "none")
# As published, and as a second simulator says.
FIFO, SJF = 24_397.49, 2_113.65
EVERY = 10  # every so many-th who has to wait in a whole week is forecast
STARTS = "starts before P90, "
# Whole weeks in overload take a quarter of an hour each: every eighth job on an eighth of 48 and of 40 nodes instead.
PART, PART_NODES = 8, (6, 5)


class Bounds(NamedTuple):
    """What a figure must not be below and above."""

    least: float = -math.inf
    most: float = math.inf

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:,}"
        if math.isinf(self.least):
            return "-" if math.isinf(self.most) else f"≤ {self.most:,}"
        return f"≥ {self.least:,}" if math.isinf(self.most) else f"{self.least:,} to {self.most:,}"


FREE = Bounds()  # nothing is asked of the figure
STARTS_WANTED = Bounds(0.88, 0.92)


def most(value: float) -> Bounds:
    """No more than this."""
    return Bounds(most=value)


def least(value: float) -> Bounds:
    """No less than this."""
    return Bounds(least=value)


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A line of the table: what is measured, its figure (None: nothing to measure) beside what it must and should be,
    and what belongs to it.
    """

    name: str
    figure: float | None
    must: Bounds = FREE
    aim: Bounds = FREE
    beside: dict[str, Any] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """The line as it is printed."""
        is_met = self.figure is not None and self.must.least <= self.figure <= self.must.most
        verdict = {} if self.must == FREE else {"met": "yes" if is_met else "NO"}
        return {
            "is": "-" if self.figure is None else self.figure,
            "must": str(self.must),
            "aim": str(self.aim),
            **verdict,
            **self.beside,
        }


class Part(NamedTuple):
    """Rows that one process measures, and about how many CPU seconds that takes."""

    seconds: int
    rows: Callable[[], list[TargetRow]]


def queue_parts(traces: Path | None) -> Iterator[Part]:
    """Waiting, by the options of ``scheduler.replay queue`` (docs/queue.md)."""
    if traces is None:
        samples: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("estimates column", ()),
            ("no estimates", NO_ESTIMATES),
            ("nobody preemptible", ALONE),
            ("clairvoyant SRTF with ageing", ("--policy", "srtf_aged")),
            ("SJF with true durations", ("--policy", "sjf")),
            ("FIFO", ("--policy", "fifo")),
        )
        for name, options in samples:
            yield Part(
                5, partial(waited, f"sample, {SAMPLE_NODES} nodes, {name}", SAMPLE, SAMPLE_NODES, options)
            )
        return
    week, other = traces / WEEK, traces / OTHER_WEEK
    limits: tuple[tuple[str, tuple[str, ...], tuple[tuple[int, int, int, int], ...]], ...] = (
        ("estimates column", (), ((64, 300, 250, 50), (52, 1_000, 830, 60), (40, 2_700, 2_050, 100))),
        ("no estimates", NO_ESTIMATES, ((64, 320, 262, 50), (52, 1_050, 890, 70), (40, 3_000, 2_400, 110))),
        ("nobody preemptible", ALONE, ((64, 1_900, 1_500, 30), (52, 6_000, 5_000, 40), (40, 7_000, 6_000, 60))),
    )  # fmt: skip
    for name, options, sizes in limits:
        for nodes, must, aim, seconds in sizes:
            told = f"mean wait s, {nodes} nodes, {name}"
            is_timed = name == "estimates column" and nodes == 64
            yield Part(
                seconds, partial(waited, told, week, nodes, options, most(must), most(aim), is_timed=is_timed)
            )
    for draw in DRAWS:
        yield Part(50, partial(tail, f"p99.9 of the wait s, 64 nodes, draw {draw}", week, draw))
    for nodes, must_be, aimed, seconds in ((64, 1.15, 1.05, 60), (40, 1.6, 1.35, 150)):
        yield Part(seconds, partial(beside_clairvoyant, other, nodes, must_be, aimed))
    for name, order, published in (("FIFO", "fifo", FIFO), ("SJF with true durations", "sjf", SJF)):
        to_the_second = Bounds(round(published - 0.5, 2), round(published + 0.5, 2))
        told = f"mean wait s, 64 nodes, {name}"
        yield Part(30, partial(waited, told, week, 64, ("--policy", order), to_the_second, to_the_second))


def waited(
    name: str,
    jobs: Path,
    nodes: int,
    options: tuple[str, ...],
    must: Bounds = FREE,
    aim: Bounds = FREE,
    *,
    is_timed: bool = False,
) -> list[TargetRow]:
    """The mean wait of a replay, and how long the replay took where ``is_timed``."""
    found = _run(queue, jobs, nodes, *options)
    keys = ("p99_wait_s", "p999_wait_s", "preemptions", "worst_team_slowdown", "cpu_s")
    rows = [TargetRow(name, found["mean_wait_s"], must, aim, _of(found, *keys))]
    if is_timed:
        rows.append(TargetRow("wall time s of the row above", found["wall_s"], most(60), most(10)))
    return rows


def tail(name: str, jobs: Path, draw: int) -> list[TargetRow]:
    """The longest waits but one in a thousand, with estimates drawn anew."""
    found = _run(queue, jobs, 64, "--draw", str(draw))
    beside = _of(found, "mean_wait_s", "cpu_s")
    return [TargetRow(name, found["p999_wait_s"], most(60_000), most(45_000), beside)]


def beside_clairvoyant(jobs: Path, nodes: int, must: float, aim: float) -> list[TargetRow]:
    """The mean wait over that of who knows all durations, under the same ageing."""
    ours, theirs = _run(queue, jobs, nodes, *NO_ESTIMATES), _run(queue, jobs, nodes, "--policy", "srtf_aged")
    ratio = round(ours["mean_wait_s"] / max(theirs["mean_wait_s"], 0.01), 3)
    beside = {"ours_s": ours["mean_wait_s"], "clairvoyant_s": theirs["mean_wait_s"]}
    beside["cpu_s"] = round(ours["cpu_s"] + theirs["cpu_s"], 1)
    name = f"week of 2017-11-08 over clairvoyant SRTF with ageing, {nodes} nodes, no estimates"
    return [TargetRow(name, ratio, most(must), most(aim), beside)]


OPENB_GAIN = "gain over FGD at 130 %, points, "


def placement_parts(traces: Path | None) -> Iterator[Part]:
    """Boards given out beside the published rule on every run of ``tools.bench.curve`` (docs/placement.md)."""
    for name, runs in curve.names(traces).items():
        yield Part(8 * runs, partial(placed, traces, name))


def placed(traces: Path | None, name: str) -> list[TargetRow]:
    """All runs of one workload: points and decisions beside FGD's."""
    began = time.process_time()
    found = curve.row([curve.played(trace) for _, trace in curve.workloads(traces, (name,))])
    cpu_s = {"cpu_s": round(time.process_time() - began, 1)}
    return [
        TargetRow(OPENB_GAIN + name, found["at 130"], beside=cpu_s),
        TargetRow(
            f"allocated at 100 % minus FGD's, points, {name}", found["at 100"], least(0), least(0.3),
            _of(found, "allocated at 100", "worst point"),
        ),
        TargetRow(
            f"first refusal after FGD's, points, worst run, {name}", found["worst first refusal"], least(-1), least(0),
            {"mean": found["first refusal"]},
        ),
        TargetRow(
            f"decisions in a CPU second over FGD's, {name}", found["times FGD's"], least(1), least(3),
            {"per_s": found["decisions per second"]},
        ),
    ]  # fmt: skip


def forecast_parts(traces: Path | None) -> Iterator[Part]:
    """Starts before P90 and waiting under the rules of a new installation, which predicts lengths by itself."""
    for consent in queue.CONSENTS:
        told = f"nodes, consent {consent}, as newly installed"
        if traces is None:
            yield Part(
                5, partial(forecasted, f"sample, {SAMPLE_NODES} {told}", SAMPLE, SAMPLE_NODES, consent)
            )
            continue
        week, other = traces / WEEK, traces / OTHER_WEEK
        yield Part(300, partial(forecasted, f"2017-10-01, 64 {told}", week, 64, consent, every=EVERY))
        for name, jobs in (("2017-10-01", week), ("2017-11-08", other)):
            for nodes in PART_NODES:
                row = f"every {PART}th job of {name}, {nodes} {told}"
                yield Part(60, partial(forecasted, row, jobs, nodes, consent, is_part=True))


@contextmanager
def part_of(jobs: Path) -> Iterator[Path]:
    """Every so many-th job of a trace, the first one included, as a file of its own."""
    with TemporaryDirectory() as folder, gzip.open(jobs, "rt", encoding="utf-8") as lines:
        found = Path(folder) / "jobs.csv"
        found.write_text(next(lines) + "".join(islice(lines, 0, None, PART)), encoding="utf-8")
        yield found


def forecasted(
    name: str, jobs: Path, nodes: int, consent: str, *, every: int = 1, is_part: bool = False
) -> list[TargetRow]:
    """How many starts came before P90, how wide the windows were, and how long people waited."""
    with part_of(jobs) if is_part else nullcontext(jobs) as played:
        found = _run(forecast, played, nodes, "--installed", "--consent", consent, "--every", str(every))
    keys = ("share_before_p50", "samples", "certain", "median_width_s", "cpu_s")
    beside = {key: found.get(key) for key in keys}
    must = STARTS_WANTED
    return [
        TargetRow(STARTS + name, found["share_before_p90"], must, must, beside),
        TargetRow(
            f"mean wait s, {name}", found["mean_wait_s"], beside=_of(found, "p99_wait_s", "p999_wait_s")
        ),
    ]


def live_rows() -> list[TargetRow]:
    """The product's own turn and the way from a form to a lease, nothing else running (docs/measurements.md)."""
    turn, asked = cycle.measure(), latency.measure()
    figures = turn["turn_ms"]
    median = figures["median"]
    return [
        TargetRow("live turn ms, 10,000 GPUs, 5,000 waiting, median", median, most(500), most(150), figures),
        TargetRow(
            "submit to active ms, median",
            asked["submit_to_active_ms"]["p50"],
            beside=asked["submit_to_active_ms"],
        ),
    ]


def measure() -> dict[str, Any]:
    """All rows, by name; each is told on standard error as soon as it is there."""
    folder = os.environ.get("TRACES")
    traces = Path(folder) if folder else None
    began = time.perf_counter()
    parts = [*queue_parts(traces), *placement_parts(traces), *forecast_parts(traces)]
    rows: dict[int, list[TargetRow]] = {}
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        longest = sorted(enumerate(parts), key=lambda one: -one[1].seconds)
        running = {pool.submit(part.rows): number for number, part in longest}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            for row in done.result():
                print(f"{row.name}: {row.told()}", file=sys.stderr, flush=True)
    found = [row for number in range(len(parts)) for row in rows[number]]
    if traces is None:
        # Samples are too small to hold anything to a limit.
        found = [replace(row, must=FREE, aim=FREE) for row in found]
    else:
        of_openb = {OPENB_GAIN + name for name in curve.WORKLOADS}
        gain = mean(row.figure for row in found if row.name in of_openb and row.figure is not None)
        found.append(TargetRow(f"{OPENB_GAIN}mean of openb's", round(gain, 2), least(0.9), least(1.3)))
        found.append(starts_of_all(found))
        found += live_rows()
    table = {row.name: row.told() for row in found}
    return table | {"wall time": {"wall_s": round(time.perf_counter() - began), "processes": PROCESSES}}


def starts_of_all(rows: list[TargetRow]) -> TargetRow:
    """All forecasts of these runs together: a run of 140 is off by two and a half points one time in three."""
    runs = [row for row in rows if row.name.startswith(STARTS) and row.figure is not None]
    samples = sum(row.beside["samples"] for row in runs)
    share = sum(row.figure * row.beside["samples"] for row in runs if row.figure is not None) / samples
    return TargetRow(STARTS + "all runs", round(share, 4), STARTS_WANTED, STARTS_WANTED, {"samples": samples})


def _run(experiment: Any, jobs: Path, nodes: int, *options: str) -> dict[str, Any]:
    known = argparse.ArgumentParser()
    experiment.add_arguments(known)
    found: dict[str, Any] = experiment.run(
        known.parse_args(["--jobs", str(jobs), "--nodes", str(nodes), *options])
    )
    return found


def _of(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: found[key] for key in keys}
