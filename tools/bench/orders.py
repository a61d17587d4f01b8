"""The orders of a live turn, played and timed: ``python -m tools.bench.orders [speed|play NODES EVERY] [--jobs F]``.

``speed``: handing out 5,000 waiting claims of 400 people in 60 teams while 100 are granted. ``play``: every
EVERY-th job of a trace through the product's own ``plan`` on NODES nodes of 8 boards, nobody preempted. People ask
for one to eight times what they will need (drawn by seed), which is all the engine knows: nothing is learned,
nothing predicted, as in an installation that begins. With ``--learn`` curves are drawn every four hours from the
jobs that have ended. Each team's jobs are its four people's in turn.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import heapq
import json
import random
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler.engine.events import held_by
from scheduler.engine.learning.lengths import LengthRecord
from scheduler.engine.model import (
    Claim,
    DecayedUsage,
    DeviceInfo,
    Grant,
    GrantedSlot,
    Held,
    Learned,
    NodeInfo,
    PolicyRules,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.order import ORDERS
from scheduler.engine.order.fair_share import decayed
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.plan import plan
from scheduler.engine.policy import WORKS, Pools

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SAMPLE = "tests/data/philly/jobs.csv"
PEOPLE, BOARDS = 4, 8
RENEW_S = 14_400
ASKED = (1.0, 1.5, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the trace: who it is of, what it asks for and how long it will run."""

    id: int
    submit_s: int
    duration_s: int
    gpus: int
    team: int
    user: int
    asked_s: int


def play(path: str, nodes: int, every: int, *, learns: bool) -> dict[str, Any]:
    """Waits, and slowdowns of people, per order; with ``learns`` of the orders that read curves."""
    jobs = _jobs(path, every, nodes * BOARDS)
    names = ("default", "guarantees_first") if learns else ORDERS
    return {name: _Run(jobs, nodes, PolicyRules(order=name), learns=learns).figures() for name in names}


def _jobs(path: str, every: int, most: int) -> list[Job]:
    raw = Path(path).read_bytes()
    text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode()
    rows = list(csv.DictReader(text.splitlines()))[::every]
    draw = random.Random(7)
    teams = {name: at + 1 for at, name in enumerate(sorted({row.get("vc", "") for row in rows}))}
    found = []
    for at, row in enumerate(rows):
        length, gpus = max(1, int(row["duration_s"])), int(row["gpus"])
        if gpus <= most:
            asked = int(length * draw.choice(ASKED))
            found.append(
                Job(at + 1, int(row["submit_s"]), length, gpus, teams[row.get("vc", "")], at % PEOPLE, asked)
            )
    return found


class _Run:
    """One order over all jobs: turns at every arrival and end."""

    def __init__(self, jobs: list[Job], nodes: int, policy: PolicyRules, *, learns: bool) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.policy = policy
        self.nodes = tuple(NodeInfo(n, f"n{n}") for n in range(1, nodes + 1))
        self.devices = tuple(
            DeviceInfo(n * BOARDS + at, n, "gpu", 1, 80_000, 1000, frozenset({"exclusive"}), index=at)
            for n in range(1, nodes + 1)
            for at in range(BOARDS)
        )
        self.quotas = tuple(TeamQuota(team, None, None, 0) for team in sorted({job.team for job in jobs}))
        self.waiting: dict[int, Claim] = {}
        self.held: dict[int, tuple[Held, ...]] = {}
        self.running: dict[int, Running] = {}
        self.used: dict[tuple[int, int], float] = defaultdict(float)
        self.counted_to = 0
        self.started: dict[int, int] = {}
        self.record = LengthRecord() if learns else None
        self.due = 0
        self.learned = Learned()

    def figures(self) -> dict[str, Any]:
        began = time.monotonic()
        events = [(job.submit_s, 1, job.id) for job in self.jobs.values()]
        heapq.heapify(events)
        turns = 0
        while events:
            now = events[0][0]
            self._count(now)
            while events and events[0][0] == now:
                _, kind, job_id = heapq.heappop(events)
                if kind:
                    self.waiting[job_id] = self._claim(self.jobs[job_id])
                else:
                    del self.held[job_id], self.running[job_id]
                    self._learn(self.jobs[job_id], now)
            if self.waiting:
                turns += 1
                for job_id in self._turn(now):
                    heapq.heappush(events, (now + self.jobs[job_id].duration_s, 0, job_id))
        return {**self._waits(), "turns": turns, "wall_s": round(time.monotonic() - began, 1)}

    def _learn(self, job: Job, now: int) -> None:
        """Remember an end, and learn anew every four hours."""
        if self.record is None:
            return
        self.record.note(job.team, job.gpus, job.duration_s)
        if now < self.due:
            return
        self.due = now + RENEW_S
        live = [self.jobs[job_id] for job_id in self.running]
        unfinished = [(one.team, one.gpus, float(now - self.started[one.id])) for one in live]
        self.learned = self.record.learned(self.learned.version + 1, unfinished)

    def _claim(self, job: Job) -> Claim:
        is_gang = job.gpus > BOARDS
        return Claim(
            job.id, job.team, "exclusive", job.gpus, job.asked_s, 0, NOON + timedelta(seconds=job.submit_s),
            user_id=job.user, nodes=0 if is_gang else 1,
        )  # fmt: skip

    def _turn(self, now_s: int) -> list[int]:
        now = NOON + timedelta(seconds=now_s)
        people = tuple(DecayedUsage(*who, int(used)) for who, used in sorted(self.used.items()))
        held = tuple(one for lease in self.held.values() for one in lease)
        snapshot = Snapshot(
            now, self.nodes, self.devices, held, tuple(self.waiting.values()), self.quotas,
            running=tuple(self.running.values()), people=people, learned=self.learned,
        )  # fmt: skip
        grants = plan(snapshot, self.policy).grants
        for grant in grants:
            job = self.jobs[grant.claim_id]
            del self.waiting[job.id]
            self.started[job.id] = now_s
            self.held[job.id] = tuple(replace(one, lease_id=job.id) for one in held_by(grant, now))
            until = now + timedelta(seconds=job.asked_s)
            self.running[job.id] = Running(
                job.id, job.id, job.team, job.user, grant.node_id, now, until, grant.cost_milli
            )
        return [grant.claim_id for grant in grants]

    def _count(self, now_s: int) -> None:
        """Bring decayed use up to date, but for the decay within the step."""
        passed, self.counted_to = now_s - self.counted_to, now_s
        for who in self.used:
            self.used[who] = decayed(self.used[who], passed, self.policy.half_life_s)
        for job_id, lease in self.running.items():
            ran = min(passed, now_s - self.started[job_id])
            self.used[lease.team_id, lease.user_id] += lease.cost_milli * ran

    def _waits(self) -> dict[str, Any]:
        waits = sorted(at - self.jobs[job_id].submit_s for job_id, at in self.started.items())
        spent: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for job_id, at in self.started.items():
            job = self.jobs[job_id]
            sums = spent[job.team, job.user]
            sums[0] += at - job.submit_s + job.duration_s
            sums[1] += job.duration_s
        return {
            "jobs": len(waits),
            "mean_wait_s": round(sum(waits) / len(waits)),
            "p50_wait_s": waits[len(waits) // 2],
            "p99_wait_s": waits[int(len(waits) * 0.99)],
            "max_wait_s": waits[-1],
            "worst_person_slowdown": round(max(all_s / ran_s for all_s, ran_s in spent.values()), 2),
        }


def speed() -> dict[str, Any]:
    """Milliseconds per order, with and without pools: a turn of 100 grants, and the order of its start."""
    snapshot = _crowd()
    pools = Pools((("interactive", 5), ("training", 3), ("inference", 2)))
    return {
        f"{name}{', pools' if parts.parts else ''}": {
            "turn_ms": round(
                min(_turn_ms(snapshot, PolicyRules(order=name, pools=parts)) for _ in range(5)), 1
            ),
            "ordered_ms": round(min(_ordered_ms(snapshot, PolicyRules(order=name)) for _ in range(5)), 1),
        }
        for parts in (Pools(), pools)
        for name in ORDERS
    }


def _crowd() -> Snapshot:
    draw = random.Random(1)
    parents = [None, *([1] * 10), *(2 + team % 10 for team in range(12, 62))]
    quotas = tuple(
        TeamQuota(at + 1, parent, None, 0, guaranteed_milli=draw.choice((0, 8000)))
        for at, parent in enumerate(parents)
    )
    nodes = tuple(NodeInfo(n, f"n{n}", cpu_milli=96_000, memory_mib=1_000_000) for n in range(125))
    devices = tuple(
        DeviceInfo(n, n // 8, "gpu", 8, 80_000, 1000, frozenset({"exclusive"}), index=n % 8)
        for n in range(1000)
    )
    people = [(draw.randint(12, 61), user) for user in range(1, 401)]
    queue = tuple(
        Claim(
            n, people[n % 400][0], "exclusive", draw.choice((1, 1, 2, 4, 8)), draw.choice((600, 3600, 86_400)),
            draw.choice((0, 0, 0, 10)), NOON - timedelta(seconds=draw.randint(0, 40_000)),
            user_id=people[n % 400][1], work=draw.choice(WORKS), predicted_s=draw.choice((0, 500)),
        )
        for n in range(1, 5001)
    )  # fmt: skip
    used = tuple(DecayedUsage(*who, draw.choice((0, 1, 5, 9)) * 10**9) for who in people)
    until = NOON + timedelta(hours=1)
    running = tuple(
        Running(n, n, *people[n % 400], n // 8, NOON - timedelta(seconds=draw.randint(0, 9000)), until, 1000)
        for n in range(1, 900)
    )
    held = tuple(Held(r.lease_id, 0, 8, "exclusive", r.team_id, r.lease_id, until, 1000) for r in running)
    return Snapshot(NOON, nodes, devices, held, queue, quotas, people=used, running=running)


def _turn_ms(snapshot: Snapshot, policy: PolicyRules) -> float:
    began = time.perf_counter()
    lineup = Lineup(snapshot, policy)
    for at, claim in enumerate(lineup):
        if at % 7 == 0 and at < 700:
            slots = (GrantedSlot(at, "exclusive", 0, 8, 1000, 80_000),) * claim.count
            lineup.note(Grant(claim.id, claim.team_id, 1, slots, claim.count * 1000, claim.duration_s))
    return (time.perf_counter() - began) * 1000


def _ordered_ms(snapshot: Snapshot, policy: PolicyRules) -> float:
    began = time.perf_counter()
    Lineup(snapshot, policy).ordered(snapshot.queue)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    known = argparse.ArgumentParser(prog="python -m tools.bench.orders", description=__doc__)
    known.add_argument("what", choices=("speed", "play"))
    known.add_argument("nodes", type=int, nargs="?", default=2)
    known.add_argument("every", type=int, nargs="?", default=1)
    known.add_argument("--jobs", default=SAMPLE, help=f"trace ({SAMPLE})")
    known.add_argument("--learn", action="store_true", help="draw curves from what has ended")
    options = known.parse_args()
    if options.what == "speed":
        found = speed()
    else:
        found = play(options.jobs, options.nodes, options.every, learns=options.learn)
    for name, figures in found.items():
        print(f"{name:24} {json.dumps(figures)}")


if __name__ == "__main__":
    main()
