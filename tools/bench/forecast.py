"""How long a form waits for its forecast: 1,000 GPUs in use, 5,000 requests waiting.

The fleet and the queue are made by seed: 125 nodes with 8 boards each, whole boards, MIG slices and shares of
nine teams, most of them running. 100 requests that nobody has submitted yet are asked for, each with its
counter-offers, as the form does while it is being filled in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median, quantiles
from typing import Any

from nodeagent.protocol.boards import board
from scheduler.engine.counter_offers import counter_offers
from scheduler.engine.events import held_by
from scheduler.engine.forecaster import forecaster_of
from scheduler.engine.model import (
    SHARED_MODES,
    Booking,
    Claim,
    DeviceInfo,
    Held,
    MigProfile,
    NodeInfo,
    Outage,
    PolicyRules,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.plan import plan

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
NODES, BOARDS, WAITING, ASKED, TEAMS = 125, 8, 5_000, 100, 9
MODELS = ("h100-80gb",) * 60 + ("a100-80gb",) * 40 + ("l40s-48gb",) * 25
MODES = {
    "h100-80gb": ("exclusive", "mig", "mps"),
    "a100-80gb": ("exclusive", "mig"),
    "l40s-48gb": ("exclusive", "mps", "memlimit"),
}
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
HOURS = (0.5, 1, 1, 2, 2, 4, 8, 8, 24, 72)
HORIZON_S = 14 * 86_400


def measure() -> dict[str, Any]:
    """Milliseconds per asked request, without anything booked and with bookings and maintenance ahead.

    ``played_ms`` is spent once per published picture, before its first answer. The CPU time is what remains
    of it all on a machine that does nothing else.
    """
    return {
        "nothing booked": _figures(busy_fleet()),
        "60 booked boards, 3 nodes to be maintained": _figures(with_blocks(busy_fleet())),
    }


def _figures(snapshot: Snapshot) -> dict[str, Any]:
    policy = PolicyRules()
    asked = list(unsubmitted(snapshot))
    began, worked = time.perf_counter(), time.process_time()
    forecaster_of(snapshot, policy, HORIZON_S)
    played, played_cpu = time.perf_counter() - began, time.process_time() - worked
    took, used, known = [], [], 0
    for claim, others in asked:
        began, worked = time.perf_counter(), time.process_time()
        own, _ = counter_offers(snapshot, policy, claim, others, HORIZON_S)
        took.append((time.perf_counter() - began) * 1000)
        used.append((time.process_time() - worked) * 1000)
        known += own.starts_at is not None
    return {
        "running": len({one.lease_id for one in snapshot.held}) - 1,
        "waiting": len(snapshot.queue),
        "asked": len(asked),
        "start_known": known,
        "played_ms": round(played * 1000),
        "p50_ms": round(median(took), 1),
        "p99_ms": round(quantiles(took, n=100)[98], 1),
        "played_cpu_ms": round(played_cpu * 1000),
        "p50_cpu_ms": round(median(used), 1),
        "p99_cpu_ms": round(quantiles(used, n=100)[98], 1),
    }


def busy_fleet(waiting: int = WAITING, seed: int = 7) -> Snapshot:
    """A fleet that served requests until nothing more fitted, and those that wait."""
    chance = random.Random(seed)
    nodes = tuple(
        NodeInfo(n, f"gpu-{n:03}", "", 128_000, 1_048_576, "", f"rack-{n // 8}") for n in range(1, NODES + 1)
    )
    devices = tuple(_device(n, at) for n in range(1, NODES + 1) for at in range(BOARDS))
    quotas = (
        TeamQuota(1, None, None, 0, "all"),
        *(TeamQuota(n, 1, 250_000 if n % 3 else None, 0, f"team-{n}") for n in range(2, TEAMS + 1)),
    )
    empty = Snapshot(NOON, nodes, devices, (), (), quotas)
    first = tuple(claims(chance, 1_600, 1, timedelta(0)))
    found = plan(replace(empty, queue=first), PolicyRules())
    held = _hosted(
        [one for g in found.grants for one in held_by(g, _began(chance, g.duration_s), g.claim_id)]
    )
    used = {team.team_id: 0 for team in quotas}
    for grant in found.grants:
        for team in (grant.team_id, 1):
            used[team] += grant.cost_milli
    return replace(
        empty,
        held=held,
        queue=tuple(claims(chance, waiting, 10_001, timedelta(seconds=7))),
        quotas=tuple(replace(team, used_milli=used[team.team_id]) for team in quotas),
    )


def with_blocks(snapshot: Snapshot, bookings: int = 60, nodes: int = 3) -> Snapshot:
    """The same with boards booked whose leases end before, and with maintenance to come."""
    chance = random.Random(11)
    free_from = {device.id: NOON for device in snapshot.devices}
    for held in snapshot.held:
        free_from[held.device_id] = max(free_from[held.device_id], held.until)
    soon = [d for d in snapshot.devices if free_from[d.id] < NOON + timedelta(hours=9)]
    booked = []
    for number, device in enumerate(chance.sample(soon, min(bookings, len(soon)))):
        starts = NOON + timedelta(hours=9 + 6 * (number % 8))
        held = Held(
            device.id, 0, device.grid, "exclusive", 2, 90_000 + number, starts + timedelta(hours=4), 1000
        )
        booked.append(Booking(starts, held))
    away = tuple(
        Outage(node, NOON + timedelta(hours=20), NOON + timedelta(hours=26), f"window-{node}")
        for node in range(1, nodes + 1)
    )
    return replace(snapshot, bookings=tuple(booked), outages=away)


def unsubmitted(snapshot: Snapshot, count: int = ASKED) -> Iterator[tuple[Claim, list[Claim]]]:
    """Requests that a form asks about, with the changes it would offer."""
    chance = random.Random(3)
    for claim in claims(chance, count, 1, timedelta(0)):
        wanted = replace(claim, id=-1, queued_at=snapshot.taken_at)
        others = [replace(wanted, count=n) for n in range(wanted.count - 1, 0, -1)]
        others.append(replace(wanted, duration_s=wanted.duration_s // 2))
        others += [
            replace(other, team_id=wanted.team_id, queued_at=wanted.queued_at, duration_s=wanted.duration_s)
            for other in claims(chance, 12, 1, timedelta(0))
        ]
        yield wanted, [replace(other, id=-2 - at) for at, other in enumerate(others)]


def claims(chance: random.Random, count: int, first: int, apart: timedelta) -> Iterator[Claim]:
    """Requests as people make them: mostly one board, some gangs, slices and shares; hours to days."""
    for at in range(count):
        waited = apart * (count - at)
        yield _claim(chance, first + at, NOON - waited)


def _claim(chance: random.Random, number: int, queued_at: datetime) -> Claim:
    seconds = int(chance.choice(HOURS) * 3600)
    priority = chance.choice((0, 0, 0, 0, 0, 0, 10, -10))
    one = Claim(number, chance.randrange(2, TEAMS + 1), "exclusive", 1, seconds, priority, queued_at)
    kind = chance.random()
    if kind < 0.55:
        model = chance.choice(MODELS)
        count = chance.choice((1, 1, 1, 1, 1, 2, 2, 4, 8))
        return replace(
            one,
            count=count,
            models=frozenset({model}),
            cpu_milli=8_000 * count,
            host_memory_mib=65_536 * count,
        )
    if kind < 0.8:
        model = chance.choice(("h100-80gb", "a100-80gb"))
        return replace(
            one, mode="mig", profile=chance.choice(PROFILES), models=frozenset({model}), cpu_milli=2_000
        )
    share, memory = chance.choice(((250, 10_000), (500, 20_000), (100, 4_000)))
    return replace(
        one,
        mode="mps",
        share_milli=share,
        memory_mib=memory,
        models=frozenset({"l40s-48gb"}),
        cpu_milli=1_000,
    )


def _began(chance: random.Random, duration_s: int) -> datetime:
    return NOON - timedelta(seconds=int(chance.random() * duration_s))


def _hosted(held: list[Held]) -> tuple[Held, ...]:
    """The placements with the host placements of their shares."""
    hosts: dict[int, Held] = {}
    for one in held:
        if one.mode in SHARED_MODES:
            kept = hosts.get(one.device_id)
            until = max(one.until, kept.until) if kept else one.until
            hosts[one.device_id] = replace(
                one, size=1, share_milli=1000, memory_mib=0, is_host=True, lease_id=None, until=until,
                cpu_milli=0, host_memory_mib=0,
            )  # fmt: skip
    return (*hosts.values(), *held)


def _device(node: int, at: int) -> DeviceInfo:
    model = MODELS[node - 1]
    kind = board(model)
    profiles = tuple(
        MigProfile(p.name, p.memory_slices, p.starts, -(-p.memory_slices * 1000 // kind.memory_slices),
                p.memory_mib or 0, p.max_instances)
        for p in kind.profiles
        if p.name in PROFILES
    )  # fmt: skip
    return DeviceInfo(
        (node - 1) * BOARDS + at + 1, node, model, kind.memory_slices, kind.memory_mib or 0, 1000,
        frozenset(MODES[model]), profiles if "mig" in MODES[model] else (), None, kind.max_clients, at,
    )  # fmt: skip
