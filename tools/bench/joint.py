"""What placing a turn's requests together serves beyond one after another: ``python -m tools.bench.joint``.

Two kinds of turn, both made by seed, so that everybody gets the same ones: batches of mixed requests on a
fleet like the demo's, partly in use, and batches of 50 arrivals of the openb trace (the part in
``tests/data/openb``, or the folder named by ``TRACES``) on its cluster.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from nodeagent.protocol.boards import board
from scheduler.engine.demand import Form
from scheduler.engine.events import held_by
from scheduler.engine.joint_placement import serve_in_order, serve_together
from scheduler.engine.model import Claim, DeviceInfo, Grant, Held, MigProfile, NodeInfo, PolicyRules, Snapshot
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.state import EngineState
from scheduler.replay import openb

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BATCH = 50
TURNS = 300
WORKLOADS = ("default", "gpuspec20")
FLEET = (
    ("h100-80gb", ("exclusive", "mig", "mps")),
    ("a100-80gb", ("exclusive", "mig")),
    ("l40s-48gb", ("exclusive", "mps", "memlimit")),
    ("hygon-dcu-64gb", ("exclusive", "memlimit")),
)
MIG = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
SHARES = (("mps", 250, 10_000), ("mps", 500, 20_000), ("memlimit", 0, 12_000), ("memlimit", 0, 30_000))
SAMPLE = {name: Path(f"tests/data/openb/{name}.csv") for name in ("nodes", "pods", "rank")}


def measure() -> dict[str, Any]:
    """Served with and without, and the time of a turn's decision, per kind of turn."""
    turns = {f"demo fleet, {size} waiting": _demo_turns(size) for size in (5, 10, 20, 50, 200)}
    turns["openb sample in 100 orders, one batch of 50"] = _openb_shuffled()
    for workload in WORKLOADS if "TRACES" in os.environ else ("sample",):
        turns[f"openb {workload}, batches of {BATCH}"] = _openb_turns(workload)
    return {name: _compare(found) for name, found in turns.items()}


def _compare(turns: Iterator[Snapshot]) -> dict[str, Any]:
    alone, together, gained, before, after = 0, 0, 0, [], []
    for snapshot in turns:
        queue = Lineup(snapshot, PolicyRules()).ordered(snapshot.queue)
        one, took = _timed(snapshot, queue, is_joint=False)
        both, took_more = _timed(snapshot, queue, is_joint=True)
        alone, together, gained = alone + one, together + both, gained + (both > one)
        before.append(took)
        after.append(took_more)
    return {
        "turns": len(before),
        "served_alone": alone,
        "served_together": together,
        "more_percent": round(100 * (together - alone) / max(alone, 1), 2),
        "turns_that_gain_percent": round(100 * gained / len(before), 1),
        "ms_alone": round(mean(before), 2),
        "ms_together": round(mean(after), 2),
        "ms_together_p99": round(quantiles(after, n=100)[98], 2),
    }


def _timed(snapshot: Snapshot, queue: Sequence[Claim], *, is_joint: bool) -> tuple[int, float]:
    state = EngineState.from_snapshot(snapshot, PolicyRules())
    began = time.perf_counter()
    served = serve_in_order(state, queue)
    grants, _ = serve_together(state, queue, served) if is_joint else served
    return len(grants), (time.perf_counter() - began) * 1000


def _demo_turns(size: int) -> Iterator[Snapshot]:
    for seed in range(TURNS if size < 200 else TURNS // 6):
        chance = random.Random(seed * 1000 + size)
        empty = _demo_fleet()
        filled = _served(replace(empty, queue=_claims(chance, chance.randrange(90), 1)))
        yield replace(filled, queue=_claims(chance, size, 1000))


def _demo_fleet() -> Snapshot:
    nodes = tuple(NodeInfo(n, f"gpu-{n:02}") for n in range(1, len(FLEET) + 1))
    devices = [
        _device(8 * row + at, row + 1, at, model, modes)
        for row, (model, modes) in enumerate(FLEET)
        for at in range(8)
    ]
    return Snapshot(NOON, nodes, tuple(devices), (), (), ())


def _device(number: int, node_id: int, at: int, model: str, modes: tuple[str, ...]) -> DeviceInfo:
    kind = board(model)
    profiles = tuple(
        MigProfile(
            p.name, p.memory_slices, p.starts,
            max(-(-p.memory_slices * 1000 // kind.memory_slices), -(-(p.sm_count or 0) * 1000 // (kind.sm_total or 1))),
            p.memory_mib or 0, p.max_instances,
        )
        for p in kind.profiles
        if p.name in MIG
    )  # fmt: skip
    return DeviceInfo(
        number + 1, node_id, model, kind.memory_slices, kind.memory_mib or 0, 1000, frozenset(modes),
        profiles if "mig" in modes else (), None, kind.max_clients, at,
    )  # fmt: skip


def _claims(chance: random.Random, count: int, first: int) -> tuple[Claim, ...]:
    return tuple(_claim(chance, first + at) for at in range(count))


def _claim(chance: random.Random, number: int) -> Claim:
    kind = chance.choice(("whole", "whole", "mig", "mig", "share"))
    one = Claim(number, chance.randrange(1, 4), "exclusive", 1, 3600, 0, NOON)
    if kind == "whole":
        models = chance.choice(
            ((), ("h100-80gb",), ("a100-80gb",), ("h100-80gb", "a100-80gb"), ("l40s-48gb",))
        )
        return replace(one, count=chance.choice((1, 1, 1, 2, 4)), models=frozenset(models))
    if kind == "mig":
        models = chance.choice(((), (), ("h100-80gb",), ("a100-80gb",)))
        return replace(one, mode="mig", profile=chance.choice(MIG), models=frozenset(models))
    mode, share, memory = chance.choice(SHARES)
    return replace(one, mode=mode, share_milli=share, memory_mib=memory)  # type: ignore[arg-type]


def _served(snapshot: Snapshot) -> Snapshot:
    """The picture after the queue was served one after another and its leases began."""
    state = EngineState.from_snapshot(snapshot, PolicyRules())
    grants, _ = serve_in_order(state, snapshot.queue)
    return replace(snapshot, held=snapshot.held + _held(grants, snapshot), queue=())


def _held(grants: Sequence[Grant], snapshot: Snapshot) -> tuple[Held, ...]:
    devices = {device.id: device for device in snapshot.devices}
    held = [one for grant in grants for one in held_by(grant, NOON)]
    known = {one.device_id for one in snapshot.held if one.is_host}
    hosts = {h.device_id: h for h in reversed(held) if not h.size and h.device_id not in known}
    opened = (
        replace(h, size=devices[h.device_id].grid, share_milli=1000, memory_mib=devices[h.device_id].memory_mib,
                is_host=True, lease_id=None, cpu_milli=0, host_memory_mib=0)
        for h in hosts.values()
    )  # fmt: skip
    return (*opened, *held)


def _openb_turns(workload: str) -> Iterator[Snapshot]:
    """The cluster filled batch by batch, up to 130 % of its GPUs; what a turn refuses is dropped."""
    trace = _trace(workload)
    now = _openb_cluster(trace)
    arrivals = [form for form in trace.arrivals if form.boards]
    asked = 0
    for first in range(0, len(arrivals), BATCH):
        batch = arrivals[first : first + BATCH]
        now = replace(now, queue=_pods(batch, first + 1))
        asked += sum(form.gpu for form in batch)
        yield now
        if asked > 1.3 * 1000 * len(now.devices):
            return
        now = _served(now)


def _openb_shuffled() -> Iterator[Snapshot]:
    """The small part in another order each time: filled to between half and all of its GPUs, then a batch."""
    trace = _trace("sample")
    idle = _openb_cluster(trace)
    for seed in range(TURNS // 3):
        chance = random.Random(seed)
        arrivals = [form for form in trace.arrivals if form.boards]
        chance.shuffle(arrivals)
        most, first = chance.uniform(0.5, 1.0) * 1000 * len(idle.devices), 0
        while most > 0 and first < len(arrivals) - BATCH:
            most -= arrivals[first].gpu
            first += 1
        filled = _served(replace(idle, queue=_pods(arrivals[:first], 1)))
        yield replace(filled, queue=_pods(arrivals[first : first + BATCH], first + 1))


def _openb_cluster(trace: openb.Trace) -> Snapshot:
    hosts = [host for host in trace.hosts if host.boards]
    nodes = tuple(NodeInfo(n, h.name, "", h.cpu, h.memory) for n, h in enumerate(hosts, 1))
    modes = frozenset(("exclusive", "memlimit"))
    devices = tuple(
        DeviceInfo(100 * n + at, n, host.model, 1, 16_000, 1000, modes, (), None, 99, at)
        for n, host in enumerate(hosts, 1)
        for at in range(host.boards)
    )
    return Snapshot(NOON, nodes, devices, (), (), ())


def _pods(forms: Sequence[Form], first: int) -> tuple[Claim, ...]:
    return tuple(_pod(number, form) for number, form in enumerate(forms, first))


def _pod(number: int, form: Form) -> Claim:
    models = frozenset(filter(None, form.models.split("|")))
    one = Claim(number, 1, "exclusive", form.boards, 3600, 0, NOON, models)
    if form.milli < 1000:
        one = replace(one, mode="memlimit", share_milli=form.milli)
    return replace(one, cpu_milli=form.cpu, host_memory_mib=form.memory)


def _trace(workload: str) -> openb.Trace:
    if workload == "sample":
        return openb.read(**SAMPLE, order=Path("tests/data/openb/order.txt"))
    at = Path(os.environ["TRACES"])
    return openb.read(
        at / "openb_nodes_gpu.csv", at / f"openb_pods_{workload}.csv.gz",
        at / f"openb_order/{workload}_seed42.txt.gz", at / f"openb_node_rank/{workload}_seed42.csv.gz",
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
