"""Serve random MIG requests with several placement rules and compare the compute they serve.

16 boards of eight memory slices, Poisson arrivals, exponential durations, no queue (what does not fit is
refused), no migration. The offered load is compute slices asked for x time / compute slices of the fleet.
Every rule sees the same requests and drives the engine state of the product: one decision, one grant and
one end per request.
"""

from __future__ import annotations

import heapq
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from time import perf_counter, process_time
from typing import Any

from nodeagent.protocol.boards import BoardModel, BoardProfile, board
from scheduler.engine.events import Ended
from scheduler.engine.model import Claim, DeviceInfo, Grant, Held, MigProfile, NodeInfo, PolicyRules, Snapshot
from scheduler.engine.place.fill import Groups, Spot
from scheduler.engine.place.mig import HeldPeriod, least_loss, place_mig, spread
from scheduler.engine.place.slices import pack
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.state import EngineState

START = datetime(2026, 1, 5, tzinfo=UTC)
MEAN_S = 4 * 3600
TEAM = 1
BOARDS_PER_NODE = 8
# Sizes as (compute slices, memory slices) with their part of the requests.
MIX = {(1, 1): 0.45, (1, 2): 0.08, (2, 2): 0.22, (3, 4): 0.15, (4, 4): 0.05, (7, 8): 0.05}

Place = Callable[[Shape, Groups, HeldPeriod], list[Spot] | None]


@dataclass(frozen=True, slots=True)
class ComparedRule:
    """A placement rule of the comparison; ``declares_more`` lets leases end before what they declared."""

    place: Place
    method: str
    declares_more: bool = False


RULES = {
    "binpack": ComparedRule(lambda shape, groups, _: pack(shape, groups), "fullest board that fits"),
    "spread": ComparedRule(spread, "emptiest board"),
    "least_loss": ComparedRule(least_loss, "fewest legal positions lost now"),
    "ours_untimed": ComparedRule(
        lambda shape, groups, _: place_mig(shape, groups), "fewest whole blocks lost now; durations unused"
    ),
    "ours": ComparedRule(place_mig, "fewest whole blocks lost over the declared duration, which is exact"),
    "ours_rough": ComparedRule(
        place_mig,
        "as ours, but a lease uses only an even 25-100 % of its declared duration",
        declares_more=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes, what it asks, how long it stays and how long it says it will."""

    at_s: float
    profile: str
    compute: int
    stays_s: int
    declares_s: int


@dataclass(slots=True)
class Score:
    """What one rule served of what was offered, in compute slices x seconds, and how long it took."""

    offered: int = 0
    served: int = 0
    requests: int = 0
    accepted: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


class RuledState(EngineState):
    """The product's engine state with the placement rule under comparison."""

    rule: Place
    term: HeldPeriod

    def spots(self, shape: Shape, duration_s: int | None = None, length: int = 0) -> list[Spot] | None:
        """Where the rule puts the shape now; the term says from when and for how long."""
        return self.rule(shape, self.groups(shape.kind), self.term)


def add_arguments(parser: ArgumentParser) -> None:
    """Say what can be varied."""
    parser.add_argument("--board", default="h100-80gb", help="a board with seven compute slices")
    parser.add_argument("--boards", type=int, default=16, help="number of boards")
    parser.add_argument("--requests", type=int, default=8000, help="requests per seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 0.9])
    parser.add_argument("--policies", nargs="+", choices=sorted(RULES), default=list(RULES))


def run(options: Namespace) -> dict[str, Any]:
    """Return what every rule served at every load: percentages over all seeds together.

    ``decisions_per_second`` are requests per wall second, with their grants and ends; ``cpu_s`` is the
    processor time of the same, for a machine that does other things as well.
    """
    kind = board(options.board)
    return {
        "experiment": "mig",
        "board": kind.id,
        "boards": options.boards,
        "requests": options.requests,
        "seeds": options.seeds,
        "rules": "no queue, no refusal while a position is free, no migration",
        "results": [_row(kind, options, load, name) for load in options.loads for name in options.policies],
    }


def _row(kind: BoardModel, options: Namespace, load: float, name: str) -> dict[str, Any]:
    rule = RULES[name]
    score = Score()
    for seed in options.seeds:
        requests = arrivals(kind, options.boards, load, options.requests, seed, rule.declares_more)
        serve(fleet(kind, options.boards), rule.place, requests, score)
    return {
        "load": load,
        "policy": name,
        "compute_served_percent": round(100 * score.served / max(score.offered, 1), 2),
        "requests_accepted_percent": round(100 * score.accepted / max(score.requests, 1), 2),
        "decisions_per_second": round(score.requests / max(score.wall_s, 1e-9)),
        "wall_s": round(score.wall_s, 3),
        "cpu_s": round(score.cpu_s, 3),
        "method": rule.method,
    }


def arrivals(
    kind: BoardModel, boards: int, load: float, count: int, seed: int, declares_more: bool = False
) -> list[Arrival]:
    """A seed's requests in order; the same for every rule. Raises ValueError when a size is missing."""
    sizes = [_size(kind, compute, memory) for compute, memory in MIX]
    weights = list(MIX.values())
    mean = sum(size.compute_slices * weight for size, weight in zip(sizes, weights, strict=True))
    rate = load * boards * max(size.compute_slices for size in sizes) / mean / MEAN_S
    draw, more = Random(seed), Random(f"declared {seed}")  # noqa: S311 - requests to repeat, no secrets
    found: list[Arrival] = []
    at = 0.0
    for _ in range(count):
        at += draw.expovariate(rate)
        (size,) = draw.choices(sizes, weights)
        stays = max(round(draw.expovariate(1 / MEAN_S)), 1)
        declares = round(stays / more.uniform(0.25, 1)) if declares_more else stays
        found.append(Arrival(at, size.name, size.compute_slices, stays, declares))
    return found


def serve(state: RuledState, place: Place, requests: Sequence[Arrival], score: Score) -> None:
    """Decide every request when it arrives, after all that ended before it, and add up what was served."""
    state.rule = place
    claims = [_claim(number, one) for number, one in enumerate(requests, 1)]
    ends: list[tuple[float, int, tuple[Held, ...]]] = []
    began, began_cpu = perf_counter(), process_time()
    for one, claim in zip(requests, claims, strict=True):
        while ends and ends[0][0] <= one.at_s:
            state.end(Ended(heapq.heappop(ends)[2]))
        state.now = START + timedelta(seconds=one.at_s)
        begins = state.now.timestamp()
        state.term = HeldPeriod(begins, begins + one.declares_s)
        answer = state.try_grant(claim, shape_of(claim, state.policy))
        if isinstance(answer, Grant):
            held = state.grant(answer, state.now)
            heapq.heappush(ends, (one.at_s + one.stays_s, claim.id, held))
            score.accepted += 1
            score.served += one.compute * one.stays_s
    score.wall_s += perf_counter() - began
    score.cpu_s += process_time() - began_cpu
    score.requests += len(requests)
    score.offered += sum(one.compute * one.stays_s for one in requests)


def fleet(kind: BoardModel, boards: int) -> RuledState:
    """An idle fleet of equal boards, eight to a node."""
    profiles = tuple(_profile(kind, size) for size in kind.profiles if size.memory_mib is not None)
    nodes = tuple(
        NodeInfo(number, f"node-{number}") for number in range(1, -(-boards // BOARDS_PER_NODE) + 1)
    )
    devices = tuple(
        DeviceInfo(
            id=number + 1,
            node_id=number // BOARDS_PER_NODE + 1,
            model=kind.id,
            grid=kind.memory_slices,
            memory_mib=kind.memory_mib or 0,
            weight_milli=1000,
            modes=frozenset({"mig"}),
            profiles=profiles,
            index=number % BOARDS_PER_NODE,
        )
        for number in range(boards)
    )
    return RuledState.from_snapshot(Snapshot(START, nodes, devices, (), (), ()), PolicyRules())


def _claim(number: int, one: Arrival) -> Claim:
    return Claim(number, TEAM, "mig", 1, one.declares_s, 0, START, profile=one.profile)


def _size(kind: BoardModel, compute: int, memory: int) -> BoardProfile:
    for size in kind.profiles:
        is_plain = "+" not in size.name and "-" not in size.name
        if is_plain and (size.compute_slices, size.memory_slices) == (compute, memory):
            return size
    raise ValueError(f"{kind.id} has no slice of {compute} compute and {memory} memory slices")


def _profile(kind: BoardModel, size: BoardProfile) -> MigProfile:
    parts = [
        (size.sm_count, kind.sm_total),
        (size.memory_mib, kind.memory_mib),
        (size.memory_slices, kind.memory_slices),
    ]
    share = max(-(-part * 1000 // whole) for part, whole in parts if part and whole)
    return MigProfile(
        size.name, size.memory_slices, size.starts, share, size.memory_mib or 0, size.max_instances
    )
