"""Minutes of 160 slices through 100 random disconnects, frames that come late, twice or never, and a flushed Redis.

``python -m tools.bench.lost_minutes`` wants DATABASE_URL and REDIS_URL of servers it may make a database on. Two
intakes stand for two web processes; an agent that reconnects speaks to either. What counts as told is what an intake
took: each slice must have one row for each minute in which any second of it was taken.
"""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from typing import Any

from tools.bench.own_database import measured_apart, print_measured

NODES, PER_NODE, MINUTES, DISCONNECTS = 20, 8, 15, 100


def measure() -> dict[str, Any]:
    return measured_apart("tools.bench.lost_minutes")


def _lost_minutes() -> dict[str, Any]:
    from portal.common.clock import db_now
    from portal.telemetry.partitions import keep_partitions

    now = db_now()
    keep_partitions(now=now)
    begin = (now - timedelta(minutes=MINUTES + 3)).replace(second=0, microsecond=0)
    return asyncio.run(_play(begin))


async def _play(begin: datetime) -> dict[str, Any]:
    """Play ``MINUTES`` minutes from an instant on, second by second, without waiting for the clock."""
    from portal.common.live import hub, redis_client
    from portal.common.sql import fetch
    from portal.telemetry.ingest import Intake
    from portal.telemetry.rollups import roll_up_minutes

    redis_client().flushdb()
    chance, webs, seconds = random.Random(18), [Intake(), Intake()], MINUTES * 60
    for web in webs:
        _know(web)
    # By node: when it is away, by the second it falls silent; and which process it speaks to.
    away: list[dict[int, int]] = [{} for _ in range(NODES)]
    for _ in range(DISCONNECTS):
        away[chance.randrange(NODES)][chance.randrange(5, seconds - 5)] = chance.randrange(1, 100)
    speaks_to, silent_until = [chance.randrange(2) for _ in range(NODES)], [0] * NODES
    # Finished minutes wait in Redis then: the worker comes five seconds later.
    flush_at, told, doubled_frames = chance.randrange(5, MINUTES - 5) * 60 + 15, set(), 0
    held_up: list[tuple[int, Any]] = []
    for second in range(seconds + 130):
        at = begin + timedelta(seconds=second)
        for n in range(NODES if second < seconds else 0):
            if second in away[n]:
                silent_until[n] = second + away[n][second]
                speaks_to[n] = chance.randrange(2)
            if second < silent_until[n]:
                continue
            frame = _samples(n, second)
            if chance.random() < 0.02:
                held_up.append((n, frame))  # overtaken by the next
                continue
            sent = [frame, frame] if chance.random() < 0.05 else [frame]
            doubled_frames += len(sent) - 1
            for one in sent:
                if await webs[speaks_to[n]].accept(f"node-{n}", one, at=at):
                    told.add((n, second // 60))
        late, held_up = held_up, []
        for n, frame in late if second % 3 == 0 else []:
            if await webs[speaks_to[n]].accept(f"node-{n}", frame, at=at):
                told.add((n, second // 60))
        if second % 5 == 4:
            for web in webs:
                web.flush(now=at.timestamp())
                await web._sending if web._sending else None
        if second == flush_at:
            waited = redis_client().llen("berth:minutes")
            redis_client().flushdb()
        if second % 60 == 20:
            await _in_thread(roll_up_minutes, now=at)
    await _in_thread(roll_up_minutes, now=begin + timedelta(seconds=seconds + 130))
    await hub().close()
    stored = {(lease, minute): rows for lease, minute, rows in await _in_thread(
        fetch, "SELECT lease_id, minute, count(*) FROM telemetry_minuterollup WHERE lease_id IS NOT NULL GROUP BY 1, 2"
    )}  # fmt: skip
    due = {
        (n * PER_NODE + slot + 1, begin + timedelta(minutes=minute))
        for n, minute in told
        for slot in range(PER_NODE)
    }
    return {
        "disconnects": f"{DISCONNECTS} of {NODES} nodes with {NODES * PER_NODE} slices in {MINUTES} minutes",
        "frames told twice": doubled_frames,
        "minutes of nodes that a flush took from Redis": waited,
        "minutes of slices due": len(due),
        "lost minutes (must 0)": len(due - stored.keys()),
        "doubled or invented minutes (must 0)": sum(rows - 1 for rows in stored.values())
        + len(stored.keys() - due),
    }


async def _in_thread(work: Any, *given: Any, **named: Any) -> Any:
    """Do database work in a thread that hands its connection back."""
    from django.db import connections

    def run() -> Any:
        try:
            return work(*given, **named)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


def _know(web: Any) -> None:
    """Give an intake the roster that it would read from the database."""
    import time

    from portal.telemetry.roster import DeviceFacts, LeaseFacts, NodeFacts, Roster, SlotPlace, TeamFacts

    nodes, leases = {}, {}
    for n in range(NODES):
        name, pks = f"node-{n}", range(n * PER_NODE + 1, (n + 1) * PER_NODE + 1)
        nodes[name] = NodeFacts(
            n + 1, name, None, {f"dev-{pk}": DeviceFacts(pk, 80_000, 8, 700.0) for pk in pks}
        )
        for pk in pks:
            place = SlotPlace(f"dev-{pk}", 0, 8, 80_000, True)
            leases[f"lse-{pk}"] = LeaseFacts(pk, f"lse-{pk}", 1, name, {(f"dev-{pk}", 0): place})
    web.roster.roster = Roster(nodes, leases, {1: TeamFacts("bench", (1,))})
    web.roster._read_at = time.monotonic()


def _samples(n: int, second: int) -> Any:
    """Return what a node says of its slices at one second."""
    from nodeagent.protocol.messages import DeviceSample, Samples, SlotSample

    pks = range(n * PER_NODE + 1, (n + 1) * PER_NODE + 1)
    return Samples(
        epoch=1,
        boot_id="boot",
        seq=second,
        devices=tuple(DeviceSample(f"dev-{pk}", 50.0, 40_000, 300.0, 60.0, None, "nvml") for pk in pks),
        slots=tuple(SlotSample(f"lse-{pk}", f"dev-{pk}", 0, 50.0, 40_000, 80_000, "gpm") for pk in pks),
    )


if __name__ == "__main__":
    print_measured(_lost_minutes)
