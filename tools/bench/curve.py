"""Placement over the whole range of demand, beside FGD: what is allocated at 70 to 130 %, and the first refusal.

Ours begins without knowing anything and learns as the product does; FGD knows the whole pod list. Every turn of
both is decided by ``plan``, one arrival each. ``CURVES`` names the workloads to play (their beginnings, by commas).
The openb workloads (folder in ``TRACES``) and mixes made from them: more requests for whole nodes, many of which
only the larger nodes have CPU for, and requests that want more CPU. Without traces the sample in the repository.
"""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from scheduler.engine.columns import WHOLE as WHOLE_BOARD
from scheduler.engine.demand import Form
from scheduler.engine.place.policy import COMPILE_FROM
from scheduler.replay import openb

POINTS = (70, 85, 100, 115, 130)
WORKLOADS = ("default", "gpushare40", "multigpu20", "gpuspec20")
SEEDS = (42, 43, 44, 45, 46)
SAMPLE = Path("tests/data/openb")
# Part of the GPU demand in requests for whole nodes; part of these that needs 120 cores, the rest 88; part of the
# nodes of eight boards with 128 cores instead of 96 (None: as in openb, 6 %).
WHOLE = (
    (0.1, 0.1, None),
    (0.3, 0.12, None),
    (0.45, 0.1, None),
    (0.4, 0.9, 0.6),
    (0.6, 0.9, 0.8),
    (0.45, 0.5, 0.4),
)
# Part of the requests for boards that want two and a half times their CPU.
HEAVY = (0.25, 0.5, 1.0)
DEMAND = 1.32
IN_TURN = 50  # arrivals decided by one of the two before it is the other's turn
_compiled: set[str] = set()


class Curve(NamedTuple):
    """Allocated percent at each of ``POINTS`` of demand, the demand at the first refusal of boards, and decisions
    per second.
    """

    allocated: tuple[float, ...]
    first: float
    per_s: float


Run = tuple[Curve, Curve]  # ours and FGD


def measure() -> dict[str, Any]:
    """Ours minus FGD in points for each workload: mean over its seeds, and the worst run."""
    found: dict[str, list[Run]] = {}
    chosen = tuple(os.environ.get("CURVES", "").split(","))
    folder = os.environ.get("TRACES")
    for name, trace in workloads(Path(folder) if folder else None, chosen):
        found.setdefault(name, []).append(played(trace))
    return {name: row(runs) for name, runs in found.items()}


def played(trace: openb.Trace) -> Run:
    """Ours and the published rule on the same trace. They take turns, so that what else the machine does slows both.

    What ours learns is learned before, by a replay of its own: in the product another process does it, and what it
    leaves behind, an empty processor cache above all, would slow the turns that are measured.
    """
    rules = openb.ReplayRules("default"), openb.ReplayRules("fgd", knows=True)
    for one in rules:
        _compile(trace, one)
    learning = openb.ReplayedInstallation(trace, rules[0])
    for number in range(len(trace.arrivals)):
        learning.turn((number,), number * openb.GAP_S)
    ours = openb.ReplayedInstallation(trace, rules[0], learning.versions)
    fgd = openb.ReplayedInstallation(trace, rules[1])
    line = [ours, fgd]
    with _frozen():
        for numbers in openb.batched(range(len(trace.arrivals)), IN_TURN):
            line.reverse()  # who comes second finds the arrivals in the cache
            for here in line:
                with here.clocked():
                    for number in numbers:
                        here.turn((number,), number * openb.GAP_S)
    if (ours.placed != learning.placed).any():
        raise AssertionError("The same versions of the demand gave other decisions.")
    return _curve(ours), _curve(fgd)


@contextmanager
def _frozen() -> Iterator[None]:
    """Leave what exists to itself: who happens to allocate next would pay for the collector's walk through it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def row(runs: list[Run]) -> dict[str, Any]:
    """Ours minus FGD in points: mean over the runs, and the worst."""
    at = {
        f"at {point}": round(mean(ours.allocated[i] - fgd.allocated[i] for ours, fgd in runs), 2)
        for i, point in enumerate(POINTS)
    }
    first = [ours.first - fgd.first for ours, fgd in runs]
    worst = min(ours.allocated[i] - fgd.allocated[i] for ours, fgd in runs for i in range(len(POINTS)))
    return {
        **at,
        "allocated at 100": round(mean(ours.allocated[2] for ours, _ in runs), 2),
        "first refusal": round(mean(first), 1),
        "worst first refusal": round(min(first), 1),
        "worst point": round(worst, 2),
        "decisions per second": round(median(ours.per_s for ours, _ in runs)),
        "times FGD's": round(median(ours.per_s / fgd.per_s for ours, fgd in runs), 2),
    }


def workloads(folder: Path | None, begins: tuple[str, ...] = ("",)) -> Iterator[tuple[str, openb.Trace]]:
    """Each run by the name of its workload, from the folder of the traces; None: the sample in the repository.

    Only workloads whose names begin so are made.
    """
    for name, trace in _runs(folder):
        if name.startswith(begins):
            yield name, trace()


def names(folder: Path | None) -> dict[str, int]:
    """How many runs each workload has."""
    return dict(Counter(name for name, _ in _runs(folder)))


def _runs(folder: Path | None) -> Iterator[tuple[str, Callable[[], openb.Trace]]]:
    if folder is None:
        files = [SAMPLE / name for name in ("nodes.csv", "pods.csv", "order.txt", "rank.csv")]
        yield "sample", partial(openb.read, *files)
        return
    for workload in WORKLOADS:
        for seed in SEEDS:
            yield workload, partial(_openb, folder, workload, seed)
    base = cache(partial(_openb, folder, "default", 42))
    for seed in (1, 2, 3):
        for part, large, nodes in WHOLE:
            fleet = "openb's nodes" if nodes is None else f"{nodes:.0%} large nodes"
            name = f"whole nodes {part:.0%}, {large:.0%} of them large, {fleet}"
            yield name, partial(lambda *mix: whole(base(), *mix), seed, part, large, nodes)
        for part in HEAVY:
            yield f"CPU-heavy {part:.0%}", partial(lambda *mix: heavy(base(), *mix), seed, part)


def whole(base: openb.Trace, seed: int, part: float, large: float, nodes: float | None) -> openb.Trace:
    """Requests for whole nodes among those of ``base``, in a random order, on its nodes in a random rank."""
    chance = random.Random(f"whole {seed} {part} {large} {nodes}")
    others = [form for form, number in base.listed.items() for _ in range(number) if form.boards != 8]
    amount = 8_000 * (1 - part) / part / mean(form.gpu for form in others)

    def drawn() -> Form:
        if chance.random() < 1 / (1 + amount):
            return Form(120_000 if chance.random() < large else 88_000, 65_536, 1000, 8, "")
        return chance.choice(others)

    hosts = base.hosts
    if nodes is not None:
        hosts = tuple(
            replace(host, cpu=128_000 if chance.random() < nodes else 96_000) if host.boards == 8 else host
            for host in hosts
        )
    return _mixed(hosts, drawn, chance)


def heavy(base: openb.Trace, seed: int, part: float) -> openb.Trace:
    """The requests of ``base`` in a random order, part of those for boards with two and a half times the CPU."""
    chance = random.Random(f"heavy {seed} {part}")
    forms = [form for form, number in base.listed.items() for _ in range(number) if form.boards != 8]

    def drawn() -> Form:
        form = chance.choice(forms)
        is_heavy = form.gpu and chance.random() < part
        return form._replace(cpu=min(form.cpu * 5 // 2 + 1000, 96_000)) if is_heavy else form

    return _mixed(base.hosts, drawn, chance)


def _mixed(hosts: tuple[openb.ReplayedNode, ...], drawn: Any, chance: random.Random) -> openb.Trace:
    wanted, asked = DEMAND * sum(host.boards for host in hosts) * 1000, 0
    arrivals: list[Form] = []
    while asked < wanted:
        arrivals.append(drawn())
        asked += arrivals[-1].gpu
    ranks = list(range(len(hosts)))
    chance.shuffle(ranks)
    ranked = [replace(host, rank=rank) for host, rank in zip(hosts, ranks, strict=True)]
    names = tuple(f"request {number}" for number in range(len(arrivals)))
    return openb.Trace(
        tuple(sorted(ranked, key=lambda host: host.rank)), names, tuple(arrivals), (None,) * len(arrivals),
        Counter(arrivals),
    )  # fmt: skip


def _compile(trace: openb.Trace, rules: openb.ReplayRules) -> None:
    """Let a few arrivals of each number of boards be decided, so that no kernel is compiled while the clock runs."""
    if rules.policy in _compiled or len(trace.hosts) < COMPILE_FROM:
        return
    _compiled.add(rules.policy)
    first = {(form.boards, form.milli < WHOLE_BOARD): at for at, form in enumerate(trace.arrivals)}
    at = sorted(first.values())
    openb.play(
        replace(
            trace,
            names=tuple(trace.names[one] for one in at),
            arrivals=tuple(trace.arrivals[one] for one in at),
            lives=tuple(trace.lives[one] for one in at),
        ),
        rules,
    )


def _curve(here: openb.ReplayedInstallation) -> Curve:
    capacity, placed = here.capacity, here.placed >= 0
    arrived, used = np.cumsum(here.gpu), np.cumsum(np.where(placed, here.gpu, 0))
    refused = np.flatnonzero(~placed & (here.gpu > 0))
    first = 100 * int(arrived[refused[0] if len(refused) else -1]) / capacity
    allocated = tuple(openb.percent_at(arrived, used, capacity, point) or 0.0 for point in POINTS)
    return Curve(allocated, first, len(here.gpu) / here.seconds)


def _openb(folder: Path, workload: str, seed: int) -> openb.Trace:
    return openb.read(
        folder / "openb_nodes_gpu.csv",
        folder / f"openb_pods_{workload}.csv.gz",
        folder / "openb_order" / f"{workload}_seed{seed}.txt.gz",
        folder / "openb_node_rank" / f"{workload}_seed{seed}.csv.gz",
    )
