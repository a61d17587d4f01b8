"""A look at idle leases at size: 1,000 running leases on 56 nodes with six hours of minutes each, one rule for all.

``python -m tools.bench.idle`` wants DATABASE_URL and REDIS_URL of servers it may make a database on. Wall-clock time of
this process, PostgreSQL's included; beside it its CPU time and the queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from tools.bench.own_database import measured_apart, print_measured

NODES = {"a100-80gb": 16, "h100-80gb": 40}
TEAMS, HOURS = 20, 6
_MINUTES = """
INSERT INTO telemetry_minuterollup (lease_id, minute, samples, util_mean, memory_max_mib, sm_mean)
SELECT l.id, date_trunc('minute', %s::timestamptz) - n * interval '1 minute', 60, %s, 20000, %s
  FROM leases_lease l, generate_series(%s::int, %s::int) n WHERE l.state = 'active'
"""


def measure() -> dict[str, Any]:
    return measured_apart("tools.bench.idle")


def _sweeps() -> dict[str, Any]:
    from portal.common.clock import db_now
    from portal.common.sql import execute
    from portal.idle.models import IdleAction, IdleRule
    from portal.idle.sweeping import sweep_idle, take_back_due
    from portal.leases.models import Lease
    from tools.bench import cycle

    now = db_now()
    cycle.fill_fleet(cycle.make_fleet(now, NODES), cycle.make_teams(now, TEAMS), 0, now)
    execute(_MINUTES, [now, 0, 0, 1, HOURS * 60])
    IdleRule.objects.create(then=IdleAction.RECLAIM, after_min=60, grace_min=5, changed_at=now)
    execute("ANALYZE")
    leases = Lease.objects.filter(state="active").count()
    found = {"leases": f"{leases:,}, {leases * HOURS * 60:,} minutes stored"}

    def sweep(at: datetime) -> Callable[[], int]:
        return lambda: sweep_idle(now=at)

    found["all idle, all are told"] = _timed(sweep(now))
    found["all idle, told before"] = _timed(sweep(now))
    execute(_MINUTES, [now + timedelta(minutes=10), 60, 40, 1, 10])
    found["all at work again, all are spared"] = _timed(sweep(now + timedelta(minutes=10)))
    found["all at work"] = _timed(sweep(now + timedelta(minutes=10)))
    found["nothing to take back"] = _timed(lambda: take_back_due(now=now))
    return found


def _timed(run: Callable[[], int]) -> str:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as asked:
        began, cpu = time.perf_counter(), time.process_time()
        result = run()
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return f"{took * 1000:.0f} ms, {cpu * 1000:.0f} ms CPU, {len(asked)} queries ({result:,} idle)"


if __name__ == "__main__":
    print_measured(_sweeps)
