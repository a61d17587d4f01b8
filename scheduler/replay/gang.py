"""How long one gang over several nodes takes to place on a large cluster that is partly filled.

Nodes and pods are those of the openb trace (or of its small part in ``tests/data/openb``), copied until the
cluster has as many GPUs as asked for. Pods fill it up to a part of its GPUs; then gangs come and go, and
between two of them some pods come and some older ones go. The trace knows no racks: nodes of one model are
put into racks in the order of their names. Timed is each gang from being asked for until its boards are
taken on every node, with everything that has to be rated anew since the last one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from scheduler.engine.demand import Demand, FreeCapacity
from scheduler.engine.learning.demand import priced
from scheduler.engine.place import gang
from scheduler.engine.place.policy import Decider, PlacePolicy, policy_named
from scheduler.replay import openb
from scheduler.replay.trace_files import BadTrace

SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "openb"
GPUS = 99_392
# What the trace's requests for eight GPUs have beside each of them (median).
CPU_MILLI, MEMORY_MIB = 11_000, 40_960
RACKS_PER_SITE = 64
SHARED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this experiment."""
    parser.add_argument(
        "--traces", type=Path, help="folder of the openb trace (default: TRACES, else a sample)"
    )
    parser.add_argument("--gpus", type=int, default=GPUS, help=f"at least so many GPUs ({GPUS})")
    parser.add_argument(
        "--load", type=float, default=0.5, help="part of the GPUs that pods ask for first (0.5)"
    )
    parser.add_argument("--gangs", type=int, default=1000, help="how many gangs arrive (1000)")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of a gang; 0: as few as possible (8)")
    parser.add_argument(
        "--boards", type=int, default=8, help="GPUs on each node, or in all with --nodes 0 (8)"
    )
    parser.add_argument("--live", type=int, default=50, help="so many gangs at a time (50)")
    parser.add_argument("--between", type=int, default=32, help="pods that come between two gangs (32)")
    parser.add_argument("--rack", type=int, default=16, help="nodes in a rack (16)")
    parser.add_argument("--policy", default="default", help="placement policy (default: default)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Place the gangs and measure. Raises BadTrace (bad files or figures) and UnknownPolicy."""
    began = time.perf_counter()
    policy = policy_named(options.policy)
    if min(options.gpus, options.boards, options.rack, options.live) < 1 or options.nodes < 0:
        raise BadTrace("--gpus, --boards, --rack and --live are 1 or more, --nodes is 0 or more.")
    folder = options.traces or os.environ.get("TRACES")
    one = openb.read(**_files(Path(folder) if folder else None))
    copies = -(-options.gpus // max(sum(host.boards for host in one.hosts), 1))
    trace = openb.scaled(one, copies)
    hall = RackedCluster(trace, policy, options)
    hall.fill(options.load)
    times, racks = hall.serve(options)
    figures = hall.figures(times, racks)
    return {
        "policy": options.policy,
        "trace": "openb" if folder else "sample of openb",
        "gang": f"{options.nodes} nodes with {options.boards} GPUs each"
        if options.nodes
        else f"{options.boards} GPUs on as few nodes as possible",
        **figures,
        "wall_s": round(time.perf_counter() - began, 3),
    }


class GangTimes(NamedTuple):
    """Seconds of every gang: by the clock, and of this thread's processor, which other programs do not lengthen."""

    wall: list[float]
    cpu: list[float]


def _files(folder: Path | None) -> dict[str, Path]:
    if folder is None:
        names = {"nodes": "nodes.csv", "pods": "pods.csv", "order": "order.txt", "rank": "rank.csv"}
        return {name: SAMPLE / file for name, file in names.items()}
    return {
        "nodes": folder / "openb_nodes_gpu.csv",
        "pods": folder / "openb_pods_default.csv.gz",
        "order": folder / "openb_order" / "default_seed42.txt.gz",
        "rank": folder / "openb_node_rank" / "default_seed42.csv.gz",
    }


class PodTrace:
    """The trace's nodes, idle, and its pods as wants, with a policy that knows them all."""

    def __init__(self, trace: openb.Trace, policy: PlacePolicy) -> None:
        hosts = trace.hosts
        models = tuple(sorted({host.model for host in hosts}))
        forms = list(dict.fromkeys((*trace.listed, *trace.arrivals)))
        specs = list(dict.fromkeys(form.models for form in forms))
        at = columns(
            [host.cpu for host in hosts],
            [host.memory for host in hosts],
            [models.index(host.model) for host in hosts],
            [host.boards for host in hosts],
            kinds=len(specs),
        )
        _bind(at, hosts, specs)
        wants = np.zeros((len(forms), WANT_FIELDS), np.int64)
        for row, form in enumerate(forms):
            wants[row, [CPU, MEMORY, MILLI, COUNT]] = form.cpu, form.memory, form.milli, form.boards
            wants[row, [KIND, SHARE]] = specs.index(form.models), form.milli
            wants[row, USE] = EXCLUSIVE if form.milli == WHOLE else SHARED
        number = {form: row for row, form in enumerate(forms)}
        self.rows = np.array([number[form] for form in trace.arrivals], np.int64)
        self.gpu = wants[self.rows, MILLI] * wants[self.rows, COUNT]
        capacity = int(at.totals[1])
        left = FreeCapacity(((WHOLE, capacity // WHOLE),), 0, capacity)
        demand = priced(Demand(1, tuple(trace.listed.items())), left)
        self.decider = Decider(policy, at, wants, policy.tables(demand, models, at))


def _bind(at: Columns, hosts: Sequence[openb.ReplayedNode], specs: Sequence[str]) -> None:
    """Let each kind of want use only boards of its models."""
    for kind, spec in enumerate(specs):
        if spec:
            allowed = set(spec.split("|"))
            at.serves[kind] &= np.array([host.model in allowed for host in hosts])[:, None]


class RackedCluster:
    """The cluster with its racks: pods and gangs come and go."""

    def __init__(self, trace: openb.Trace, policy: PlacePolicy, options: argparse.Namespace) -> None:
        self.cluster = PodTrace(trace, policy)
        self.decider = self.cluster.decider
        self.row = self._row(options)
        hosts = trace.hosts
        racks = _racks([host.model for host in hosts], [host.name for host in hosts], options.rack)
        zones = [str(int(rack.rpartition("-")[2]) // RACKS_PER_SITE) for rack in racks]
        self.rack_of = racks
        self.gangs = gang.GangDecider(self.decider, policy, gang.places(racks, zones))
        self.nodes = np.full(len(self.cluster.rows), -1, np.int64)
        self.boards = np.zeros(len(self.cluster.rows), np.int64)
        self.come = self.gone = 0

    def _row(self, options: argparse.Namespace) -> int:
        """The gang's want: a row of its own behind those of the pods, models of any kind."""
        row = len(self.decider.wants)
        self.decider.room_for(row + 1)
        want, size = self.decider.wants[row], options.boards
        want[[CPU, MEMORY, MILLI, SHARE]] = CPU_MILLI * size, MEMORY_MIB * size, WHOLE, WHOLE
        want[[COUNT, KIND, USE]] = size, self._any_model(), EXCLUSIVE
        return row

    def _any_model(self) -> int:
        """The kind that every board serves."""
        at = self.decider.at
        present = at.free >= 0
        kinds = [kind for kind in range(len(at.serves)) if (at.serves[kind] == present).all()]
        if not kinds:
            raise BadTrace("every pod of the trace names a model; gangs of any model need one that does not.")
        return kinds[0]

    def fill(self, load: float) -> None:
        """Let pods come until they ask for that part of the GPUs."""
        arrived = np.cumsum(self.cluster.gpu)
        self.come = int(np.searchsorted(arrived, load * int(self.decider.at.totals[1])))
        self._play(np.arange(self.come))

    def churn(self, pods: int) -> None:
        """So many pods come, and the oldest that are there go."""
        count = len(self.cluster.rows)
        pods = min(pods, count - self.come, self.come - self.gone)
        events = np.empty(2 * pods, np.int64)
        events[::2] = -np.arange(self.gone, self.gone + pods) - 1
        events[1::2] = np.arange(self.come, self.come + pods)
        self.come, self.gone = self.come + pods, self.gone + pods
        self._play(events)

    def _play(self, events: Ints) -> None:
        self.decider.replay(self.cluster.rows, events, self.nodes, self.boards)

    def serve(self, options: argparse.Namespace) -> tuple[GangTimes, list[int]]:
        """What every gang took, and how many racks each one that was placed got."""
        times = GangTimes([], [])
        racks: list[int] = []
        live: deque[list[tuple[int, int]]] = deque()
        self._warm(options)
        for _ in range(options.gangs):
            if len(live) == options.live:
                self._take(live.popleft(), -1)
            self.churn(options.between)
            began, worked = time.perf_counter(), time.thread_time()
            parts = self._place(options)
            self._take(parts, 1)
            times.wall.append(time.perf_counter() - began)
            times.cpu.append(time.thread_time() - worked)
            if parts:
                live.append(parts)
                racks.append(len({self.rack_of[node] for node, _ in parts}))
        return times, racks

    def _warm(self, options: argparse.Namespace) -> None:
        """Load the kernels before the clock runs; the first rating of every node stays inside it."""
        parts = self._place(options)
        self._take(parts, 1)
        self._take(parts, -1)
        self.decider.index.seen[self.row] = -1

    def _place(self, options: argparse.Namespace) -> list[tuple[int, int]]:
        if options.nodes:
            return self.gangs.equal(self.row, options.nodes)
        return self.gangs.free(self.row)

    def _take(self, parts: list[tuple[int, int]], sign: int) -> None:
        one = self.decider
        want = one.wants[self.row].copy()
        for node, boards in parts:
            size = boards.bit_count()
            want[[COUNT, CPU, MEMORY]] = size, CPU_MILLI * size, MEMORY_MIB * size
            one.kernels["take"](one.at, one.index, want, node, boards, one.tables, one.memo, sign)

    def figures(self, times: GangTimes, racks: list[int]) -> dict[str, Any]:
        """What the run showed."""
        at = self.decider.at
        wall, cpu = (np.sort(np.array(seconds)) * 1000 for seconds in times)
        return {
            "gangs": len(wall),
            "placed": len(racks),
            "p50_ms": _quantile(wall, 0.50),
            "p99_ms": _quantile(wall, 0.99),
            "max_ms": _quantile(wall, 1.0),
            "p99_cpu_ms": _quantile(cpu, 0.99),
            "in_one_rack": sum(number == 1 for number in racks),
            "mean_racks": round(float(np.mean(racks)), 3) if racks else None,
            "allocated_percent": round(100 * (1 - float(at.free[at.free > 0].sum()) / int(at.totals[1])), 2),
            "gpus": int(at.totals[1]) // WHOLE,
            "nodes": len(at.cpu),
            "racks": len(set(self.rack_of)),
        }


def _quantile(ordered: Any, part: float) -> float | None:
    """The value that ``part`` of the measurements do not exceed; None without any."""
    if not len(ordered):
        return None
    return round(float(ordered[max(int(np.ceil(part * len(ordered))) - 1, 0)]), 4)


def _racks(models: list[str], names: list[str], size: int) -> list[str]:
    """Racks of so many nodes of one model, in the order of the nodes' names."""
    order = sorted(range(len(names)), key=lambda node: (models[node], names[node]))
    racks = [""] * len(names)
    number, last, inside = -1, "", 0
    for node in order:
        if models[node] != last or inside == size:
            number, last, inside = number + 1, models[node], 0
        racks[node] = f"rack-{number}"
        inside += 1
    return racks
