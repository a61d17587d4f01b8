"""How long the orders of a live turn take: ``python -m tools.bench.orders``.

Handing out 5,000 waiting claims of 400 people in 60 teams while 100 are granted. What the orders do to who waits
is told by ``scheduler.replay queue --policy ORDER``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.engine.model import (
    Claim,
    DecayedUsage,
    DeviceInfo,
    Grant,
    GrantedSlot,
    Held,
    NodeInfo,
    PolicyRules,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.order import ORDERS
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.policy import WORKS, Pools

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


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
    argparse.ArgumentParser(prog="python -m tools.bench.orders", description=__doc__).parse_args()
    for name, figures in speed().items():
        print(f"{name:24} {json.dumps(figures)}")


if __name__ == "__main__":
    main()
