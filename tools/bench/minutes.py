"""Storing a minute of 10,000 slices exactly once, beside a bare COPY of the same rows in the same run.

``python -m tools.bench.minutes`` wants DATABASE_URL and REDIS_URL of servers it may make a database on. CPU is that of
this process and of PostgreSQL's; the minute is then told again in another order, as after a reconnect.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.bench.own_database import measured_apart, print_measured

SLICES, PER_NODE, ROUNDS = 10_000, 8, 5
_COLUMNS = (
    "lease_id, minute, samples, util_mean, util_max, memory_max_mib, energy_refused, sm_mean, tensor_mean,"
    " bandwidth_mean, power_mean_w"
)


def measure() -> dict[str, Any]:
    return measured_apart("tools.bench.minutes")


def _minutes() -> dict[str, Any]:
    from portal.common.clock import db_now
    from portal.common.live import redis_client
    from portal.common.sql import execute, fetch
    from portal.telemetry.ingest import MINUTES
    from portal.telemetry.models import MinuteRollup
    from portal.telemetry.partitions import keep_partitions
    from portal.telemetry.rollups import roll_up_minutes

    now, leases = db_now(), range(1, SLICES + 1)
    keep_partitions(now=now)
    execute("CREATE TABLE bare AS SELECT * FROM telemetry_minuterollup WHERE false")
    ((backend,),) = fetch("SELECT pg_backend_pid()")
    redis_client().delete(MINUTES)
    stored, copied, order = [], [], random.Random(1)
    for ago in range(ROUNDS):
        begins = int((now - timedelta(minutes=2 + ago)).timestamp()) // 60 * 60
        told = _entries(leases, begins)
        redis_client().rpush(MINUTES, *told)
        stored.append(_cpu(lambda: roll_up_minutes(now=now), backend))
        # The same again, shuffled, and half of it a third time: no row may be doubled or lost.
        redis_client().rpush(MINUTES, *order.sample(told, len(told)), *order.sample(told, len(told) // 2))
        again = _cpu(lambda: roll_up_minutes(now=now), backend)
        copied.append(_cpu(lambda begins=begins: _copy(leases, begins), backend))  # type: ignore[misc]
    rows = MinuteRollup.objects.count()
    ms, bare = (statistics.median(one) * 1000 for one in (stored, copied))
    return {
        "rows": f"{SLICES:,} slices × {ROUNDS} minutes, each told 2.5 times: {rows:,} rows stored",
        "lost or doubled": abs(rows - SLICES * ROUNDS),
        "a minute stored": f"{ms:.0f} ms CPU",
        "a bare COPY of it, no index": f"{bare:.0f} ms CPU",
        "storing against COPY (must 10, aim 5)": f"{ms / bare:.1f} ×",
        "1.5 times the same again": f"{again * 1000:.0f} ms CPU",
    }


def _entries(leases: Sequence[int], begins: int) -> list[str]:
    """Return the minutes of all nodes as the process of the agents' socket hands them over."""
    from portal.telemetry.minutes import Minute, MinuteSums, write

    found = []
    for n in range(0, len(leases), PER_NODE):
        minute = Minute(f"gpu-{n // PER_NODE:04}", begins)
        for pk in leases[n : n + PER_NODE]:
            sums = minute.leases[pk] = MinuteSums()
            for second in range(60):
                sums.add((pk + second) % 100 + 0.5, 20_000 + second)
                sums.add_activity(sm=(pk + second) % 90, tensor=second % 40, bandwidth=30.5, power_w=250.1)
        found.append(write(minute))
    return found


def _copy(leases: Sequence[int], begins: int) -> None:
    """Copy a minute of as many rows into a table without indexes: the least that storing can cost."""
    from django.db import connection

    at = datetime.fromtimestamp(begins, tz=UTC)
    with connection.cursor() as cursor, cursor.copy(f"COPY bare ({_COLUMNS}) FROM STDIN") as copy:
        for pk in leases:
            copy.write_row((pk, at, 60, 50.12, 99.5, 20_059, 0, 44.5, 19.5, 30.5, 250.1))


def _cpu(run: Callable[[], Any], backend: int) -> float:
    """Return the CPU seconds of this process and of its database process."""
    from tools.bench_live import cpu_s

    before, own = cpu_s(backend), time.process_time()
    run()
    return time.process_time() - own + cpu_s(backend) - before


if __name__ == "__main__":
    print_measured(_minutes)
