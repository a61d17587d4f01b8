"""Placement quality on the openb cluster: requests arrive in a given order and are placed at once or dropped.

Rules: order fixed, immediate decision, no refusal while any feasible node exists, nothing moves. The
policy sees the shape statistics of the whole pod list, the demand that has arrived and the capacity.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scheduler.engine.columns import (
    COUNT,
    CPU,
    EXCLUSIVE,
    KIND,
    MEMORY,
    MILLI,
    SHARE,
    USE,
    WANT_FIELDS,
    WHOLE,
    Columns,
    Ints,
    columns,
)  # fmt: skip
from scheduler.engine.place.admission import play_admitting
from scheduler.engine.place.moving import play_moving
from scheduler.engine.place.policy import Decider, PlacePolicy, policy_named
from scheduler.engine.place.statistics import Form
from scheduler.replay.tables import BadTrace, Row, rows, words

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
CLONE = "-tuned-"
SHARED = 3
MOST_BOARDS = 62
LOAD = 1.3
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Host:
    """A node of the cluster, with its place in the order that settles ties."""

    name: str
    cpu: int
    memory: int
    boards: int
    model: str
    rank: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What is replayed: hosts by rank, the form and life (seconds, None unknown) of each arrival."""

    hosts: tuple[Host, ...]
    names: tuple[str, ...]
    arrivals: tuple[Form, ...]
    lives: tuple[float | None, ...]
    listed: Counter[Form]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument("--nodes", type=Path, required=True, help="CSV: sn,cpu_milli,memory_mib,gpu,model")
    parser.add_argument("--pods", type=Path, required=True, help="CSV: name,cpu_milli,memory_mib,num_gpu,…")
    parser.add_argument("--order", type=Path, required=True, help="one pod name per line, as they arrive")
    parser.add_argument("--rank", type=Path, required=True, help="CSV: sn,rank; lower rank wins ties")
    parser.add_argument("--policy", default="default", help="placement policy (default: default)")
    parser.add_argument("--scale", type=int, default=1, help="so many copies of nodes and arrivals")
    parser.add_argument(
        "--allow-refusal", action="store_true", help="a class of its own: refuse what earns less"
    )
    parser.add_argument(
        "--max-moved-percent", type=float, default=0.0, help="a class of its own: move so many pods"
    )
    parser.add_argument("--departures", action="store_true", help="pods end; GPU-time served is measured")
    parser.add_argument("--placements", type=Path, help="write the node of every pod to this CSV file")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replay and measure. Raises BadTrace (bad files) and UnknownPolicy."""
    began = time.perf_counter()
    policy = policy_named(options.policy)
    if options.scale < 1:
        raise BadTrace(f"--scale {options.scale}: at least 1 copy is needed.")
    trace = scaled(read(options.nodes, options.pods, options.order, options.rank), options.scale)
    rules = Rules(options.policy, options.allow_refusal, options.max_moved_percent)
    if rules.may_refuse and rules.most_moved_percent:
        raise BadTrace("--allow-refusal and --max-moved-percent are classes of their own: choose one.")
    if not 0 <= rules.most_moved_percent <= 100:
        raise BadTrace(f"--max-moved-percent {rules.most_moved_percent:g}: between 0 and 100.")
    if rules.may_refuse and policy.name != "prr":
        raise BadTrace(
            "--allow-refusal works with the policy default (prr), whose prices say what to refuse."
        )
    played = (play_departures if options.departures else play)(trace, policy, rules)
    if options.placements:
        _write(options.placements, trace, played)
    return {
        "policy": options.policy,
        "class": rules.named + (", with departures" if options.departures else ""),
        "scale": options.scale,
        **played.figures,
        "decisions_per_second": round(played.decisions / played.seconds),
        "decision_s": round(played.seconds, 4),
        "wall_s": round(time.perf_counter() - began, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def read(nodes: Path, pods: Path, order: Path, rank: Path) -> Trace:
    """The trace of four files. Raises BadTrace."""
    ranks = {row.text("sn"): row.integer("rank") for row in rows(rank, ("sn", "rank"))}
    hosts = sorted((_host(row, ranks) for row in rows(nodes, NODE_COLUMNS)), key=lambda host: host.rank)
    if not hosts:
        raise BadTrace(f"{nodes}: no node.")
    forms: dict[str, tuple[Form, float | None]] = {}
    for row in rows(pods, POD_COLUMNS):
        forms[row.text("name")] = _form(row), _life(row)
    names, arrivals, lives = [], [], []
    for line, name in words(order):
        known = forms.get(name.split(CLONE)[0])
        if known is None:
            raise BadTrace(f"{order}, line {line}, column 1: {name[:80]!r} is not in {pods}.")
        names.append(name)
        arrivals.append(known[0])
        lives.append(known[1])
    listed = Counter(form for form, _ in forms.values())
    return Trace(tuple(hosts), tuple(names), tuple(arrivals), tuple(lives), listed)


def _host(row: Row, ranks: dict[str, int]) -> Host:
    name = row.text("sn")
    if name not in ranks:
        raise row.refusal("sn", f"is {name!r}, which has no rank")
    boards = row.integer("gpu")
    if boards > MOST_BOARDS:
        raise row.refusal("gpu", f"is {boards}; a node has at most {MOST_BOARDS} boards")
    model = row.text("model") if boards else row.optional("model")
    return Host(name, row.integer("cpu_milli"), row.integer("memory_mib"), boards, model, ranks[name])


def _form(row: Row) -> Form:
    boards = row.integer("num_gpu")
    if boards > MOST_BOARDS:
        raise row.refusal("num_gpu", f"is {boards}; a node has at most {MOST_BOARDS} boards")
    milli = min(row.integer("gpu_milli"), WHOLE) if boards else 0
    if boards > 1 and milli < WHOLE:
        raise row.refusal("gpu_milli", f"is {milli} for {boards} boards; parts are for one board only")
    spec = row.optional("gpu_spec") if boards else ""
    return Form(row.integer("cpu_milli"), row.integer("memory_mib"), milli, boards, spec)


def _life(row: Row) -> float | None:
    if not row.optional("creation_time") or not row.optional("deletion_time"):
        return None
    created, deleted = row.number("creation_time"), row.number("deletion_time")
    if deleted < created:
        raise row.refusal("deletion_time", "is before creation_time")
    return deleted - created


def scaled(trace: Trace, copies: int) -> Trace:
    """Nodes and arrivals ``copies`` times, copies of a pod next to each other, copy i ranked behind i - 1."""
    if copies == 1:
        return trace
    count = len(trace.hosts)
    return replace(
        trace,
        hosts=tuple(
            replace(host, name=f"{host.name}/{copy}", rank=host.rank + copy * count)
            for copy in range(copies)
            for host in trace.hosts
        ),
        names=tuple(f"{name}/{copy}" for name in trace.names for copy in range(copies)),
        arrivals=tuple(form for form in trace.arrivals for _ in range(copies)),
        lives=tuple(life for life in trace.lives for _ in range(copies)),
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """What a replay may do: only results under equal rules can be compared."""

    policy: str = "default"
    may_refuse: bool = False
    most_moved_percent: float = 0.0

    @property
    def named(self) -> str:
        """The class of results that these rules belong to."""
        if self.may_refuse:
            return "refusal allowed, nothing moves"
        if self.most_moved_percent:
            return f"no refusal, at most {self.most_moved_percent:g} % of the pods moved"
        return "no refusal, nothing moves"


PLAIN = Rules()


@dataclass(slots=True)
class Played:
    """What a replay did: the node of each arrival (-1 refused), its figures, and the time deciding took."""

    nodes: Ints
    figures: dict[str, Any]
    decisions: int
    seconds: float


class Cluster:
    """The trace's cluster, idle, and its wants as rows."""

    def __init__(self, trace: Trace, policy: PlacePolicy) -> None:
        hosts = trace.hosts
        self.models = tuple(sorted({host.model for host in hosts}))
        forms = list(dict.fromkeys((*trace.listed, *trace.arrivals)))
        specs = list(dict.fromkeys(form.models for form in forms))
        self.at = self._columns(hosts, specs)
        wants = np.zeros((len(forms), WANT_FIELDS), np.int64)
        for row, form in enumerate(forms):
            wants[row, [CPU, MEMORY, MILLI, COUNT]] = form.cpu, form.memory, form.milli, form.boards
            wants[row, [KIND, SHARE]] = specs.index(form.models), form.milli
            wants[row, USE] = EXCLUSIVE if form.milli == WHOLE else SHARED
        number = {form: row for row, form in enumerate(forms)}
        self.rows = np.array([number[form] for form in trace.arrivals], np.int64)
        self.gpu = wants[self.rows, MILLI] * wants[self.rows, COUNT]
        self.decider = Decider(policy, self.at, wants, policy.tables(trace.listed, self.models, self.at))

    def _columns(self, hosts: tuple[Host, ...], specs: list[str]) -> Columns:
        at = columns(
            [host.cpu for host in hosts],
            [host.memory for host in hosts],
            [self.models.index(host.model) for host in hosts],
            [host.boards for host in hosts],
            kinds=len(specs),
        )
        for kind, spec in enumerate(specs):
            if spec:
                allowed = set(spec.split("|"))
                at.serves[kind] &= np.array([host.model in allowed for host in hosts])[:, None]
        return at

    def play(self, events: Ints, rules: Rules) -> tuple[Ints, int, float]:
        """Nodes of the arrivals, moves, and seconds from first to last decision (kernels are loaded before)."""
        self.decider.play(self.rows[:0], events[:0])
        began, moved = time.perf_counter(), 0
        if rules.may_refuse:
            nodes, _ = play_admitting(self.decider, self.rows, events)
        elif rules.most_moved_percent:
            nodes, _, moved = play_moving(self.decider, self.rows, events, rules.most_moved_percent)
        else:
            nodes, _ = self.decider.play(self.rows, events)
        return nodes, moved, max(time.perf_counter() - began, 1e-9)


def play(trace: Trace, policy: PlacePolicy, rules: Rules = PLAIN) -> Played:
    """Arrivals only: the published experiment."""
    cluster = Cluster(trace, policy)
    nodes, moved, seconds = cluster.play(np.arange(len(cluster.rows)), rules)
    capacity = int(cluster.at.totals[1])
    placed = nodes >= 0
    arrived, used = np.cumsum(cluster.gpu), np.cumsum(np.where(placed, cluster.gpu, 0))
    refused = np.flatnonzero(~placed & (cluster.gpu > 0))
    figures = {
        "allocated_percent_at_100": _at(arrived, used, capacity, 100),
        "allocated_percent_at_130": _at(arrived, used, capacity, 130),
        "allocated_percent": round(100 * int(used[-1]) / capacity, 4) if len(used) else 0.0,
        "allocated_milli": int(used[-1]) if len(used) else 0,
        "first_refusal_at_percent": round(100 * int(arrived[refused[0]]) / capacity, 2)
        if len(refused)
        else None,
        "placed": int(placed.sum()),
        "refused": int((~placed).sum()),
        "moved": moved,
        "gpus": capacity // WHOLE,
    }
    return Played(nodes, figures, len(nodes), seconds)


def _at(arrived: Ints, used: Ints, capacity: int, percent: int) -> float | None:
    """Allocated percent when arrived demand, rounded to a whole percent, was last at most ``percent``.

    None when so much demand never arrived.
    """
    whole = np.rint(100 * arrived / capacity)
    if not len(whole) or whole[-1] < percent:
        return None
    found = np.flatnonzero(whole <= percent)
    return round(100 * int(used[found[-1]]) / capacity, 4) if len(found) else 0.0


def play_departures(trace: Trace, policy: PlacePolicy, rules: Rules = PLAIN) -> Played:
    """Arrivals and ends: the order is repeated ten times, evenly spread over a span chosen so that the
    GPU-time offered inside the span is 130 % of the supply; served is what was placed, inside the span.
    """
    if any(life is None for life in trace.lives):
        raise BadTrace("--departures: the pod list has no creation_time and deletion_time for every pod.")
    long = replace(trace, arrivals=trace.arrivals * ROUNDS, names=trace.names * ROUNDS)
    cluster = Cluster(long, policy)
    lives = np.array(trace.lives * ROUNDS, np.float64)
    supply = int(cluster.at.totals[1])
    span = _span(lives, cluster.gpu, supply)
    starts = np.arange(len(lives)) * span / len(lives)
    ends = np.minimum(starts + lives, span)
    nodes, moved, seconds = cluster.play(_events(starts, starts + lives), rules)
    time_of = cluster.gpu * (ends - starts)
    placed = nodes >= 0
    figures = {
        "served_percent": round(100 * float(time_of[placed].sum()) / (supply * span), 4),
        "offered_percent": round(100 * float(time_of.sum()) / (supply * span), 4),
        "gpu_hours_served": round(float(time_of[placed].sum()) / WHOLE / 3600, 1),
        "span_hours": round(span / 3600, 3),
        "placed": int(placed.sum()),
        "refused": int((~placed).sum()),
        "moved": moved,
        "gpus": supply // WHOLE,
    }
    return Played(nodes, figures, len(nodes), seconds)


def _span(lives: Any, gpu: Ints, supply: int) -> float:
    """Seconds over which arrivals are spread so that they offer LOAD times the supply (bisection)."""
    share = 1 - np.arange(len(lives)) / len(lives)
    low, high = 1e-3, float(lives.sum()) + 1.0
    for _ in range(200):
        middle = (low * high) ** 0.5
        offered = float((gpu * np.minimum(lives, share * middle)).sum()) / (supply * middle)
        low, high = (middle, high) if offered > LOAD else (low, middle)
    return high


def _events(starts: Any, ends: Any) -> Ints:
    """Arrivals (number) and ends (minus number, minus 1) in time order; ends go before arrivals."""
    count = len(starts)
    numbers = np.concatenate([-np.arange(count) - 1, np.arange(count)])
    order = np.lexsort((np.repeat([0, 1], count), np.concatenate([ends, starts])))
    return numbers[order].astype(np.int64)


def _write(path: Path, trace: Trace, played: Played) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.write("seq,pod,node\n")
        for at, node in enumerate(played.nodes):
            name = trace.hosts[node].name if node >= 0 else ""
            out.write(f"{at},{trace.names[at % len(trace.names)]},{name}\n")
