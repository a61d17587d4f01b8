"""The bill of leases on a real Slurm beside its accounting, while things go wrong.

Leases are held for some seconds each, by a fixed draw. Meanwhile somebody cancels jobs and suspends one, a host is
taken out, the controller goes away and a job ends while it is, the agent stands still. Then the product's own
comparison is read: each difference over 5 s should have a named cause.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.agent.pools.slurm_cluster import SlurmCluster, why_no_slurm
from tools.bench import slurm, stack
from tools.bench.client import BenchClient

LEASES, HOLDERS, SEED = 300, 16, 19
HOLD_S = (4.0, 12.0)
READ_WITHIN_S = 150.0
AWAY_S = 25.0


def measure() -> dict[str, Any]:
    if why := why_no_slurm():
        return {"skipped": why}
    with tempfile.TemporaryDirectory(prefix="berth-slurm-") as folder, stack.running(is_demo=False) as here:
        cluster = SlurmCluster(Path(folder))
        with cluster.running():
            world = slurm.pool(here, cluster)
            faults = asyncio.run(_live(here, world, cluster))
            until = time.monotonic() + READ_WITHIN_S
            found = _compared(here)
            # Rows come with the next reading of the agent.
            while found["causes"].get("no_row") and time.monotonic() < until:
                time.sleep(10)
                found = _compared(here)
            return {"faults": faults, **found}


async def _live(here: stack.BenchStack, world: dict[str, Any], cluster: SlurmCluster) -> dict[str, int]:
    """Hold all leases, with faults beside; returns how many of each fault there were."""
    client = BenchClient(here.url, world, connections=HOLDERS)
    await client.open()
    draw = random.Random(SEED)
    holds = [[draw.uniform(*HOLD_S) for _ in range(LEASES // HOLDERS + 1)] for _ in range(HOLDERS)]
    faults = asyncio.create_task(_faults(cluster, here.agents[0].pid))
    try:
        await asyncio.gather(*(_holder(client, n, holds[n]) for n in range(HOLDERS)))
    finally:
        faults.cancel()
        with suppress(asyncio.CancelledError):
            await faults
        await client.close()
    return FAULTS


async def _holder(client: BenchClient, number: int, holds: list[float]) -> None:
    connection = client.connections[number]
    for hold_s in holds:
        request, _sent = await client.submit(connection)
        with suppress(TimeoutError):
            await client.until(request, "lease.active", within_s=120)
        await asyncio.sleep(hold_s)
        with suppress(RuntimeError, KeyError):  # a fault has ended it
            await client.release(connection, client.leases[request])


FAULTS: dict[str, int] = {
    "cancelled": 0,
    "suspended": 0,
    "host_out": 0,
    "controller_away": 0,
    "agent_stopped": 0,
}


async def _faults(cluster: SlurmCluster, agent: int) -> None:
    """One fault after the other until cancelled; what is out comes back before that takes effect."""
    draw = random.Random(SEED + 1)
    kinds: list[tuple[str, Callable[[SlurmCluster, int, str], None]]] = [
        ("cancelled", _cancel), ("suspended", _suspend), ("cancelled", _cancel), ("controller_away", _away),
        ("cancelled", _cancel), ("agent_stopped", _stop), ("host_out", _host_out),
    ]  # fmt: skip
    turn = 0
    while True:
        await asyncio.sleep(5)
        running = [one.job for one in cluster.live() if one.phase == "RUNNING"]
        if running:
            name, fault = kinds[turn % len(kinds)]
            FAULTS[name] += 1
            turn += 1
            await asyncio.shield(asyncio.to_thread(fault, cluster, agent, draw.choice(running)))


def _cancel(cluster: SlurmCluster, _agent: int, job: str) -> None:
    cluster.do("scancel", job, may_fail=True)


def _suspend(cluster: SlurmCluster, _agent: int, job: str) -> None:
    cluster.do("scontrol", "suspend", job, may_fail=True)
    time.sleep(8)
    cluster.do("scontrol", "resume", job, may_fail=True)


def _away(cluster: SlurmCluster, _agent: int, job: str) -> None:
    with cluster.silent():
        for process in cluster.programs_of(job):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(AWAY_S)


def _stop(cluster: SlurmCluster, agent: int, job: str) -> None:
    os.kill(agent, signal.SIGSTOP)
    cluster.do("scancel", job, may_fail=True)
    time.sleep(AWAY_S)
    os.kill(agent, signal.SIGCONT)


def _host_out(cluster: SlurmCluster, _agent: int, _job: str) -> None:
    with cluster.without("n1"):
        time.sleep(5)


def _compared(here: stack.BenchStack) -> dict[str, Any]:
    made = subprocess.run(
        [sys.executable, "-m", "tools.bench.slurm_bill"],
        cwd=stack.ROOT, env=here.environment(), capture_output=True, check=True,
    )  # fmt: skip
    return dict(json.loads(made.stdout))


def main() -> None:
    """In the environment of the stack: print what the comparison of this month says."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from collections import Counter

    from portal.billing.periods import period_of
    from portal.cluster_usage.selectors import books_of_clusters, usage_differences
    from portal.common.clock import db_now

    found = usage_differences(period_of(db_now()))
    notable = [one for one in found if one.is_notable]
    unexplained = [
        [one.lease.uid, one.difference_s, [[part.cause, part.seconds, part.evidence] for part in one.parts]]
        for one in notable
        if not one.is_explained
    ]
    known = [one.difference_s for one in found if one.difference_s is not None]
    answer = {
        "leases": len(found),
        "books": [[one.node.name, one.state, one.refused, one.refused_why] for one in books_of_clusters()],
        "over_5_s": len(notable),
        "without_a_cause": len(unexplained),
        "causes": Counter(str(part.cause) for one in notable for part in one.parts if abs(part.seconds) > 5),
        "difference_s": [min(known, default=None), max(known, default=None)],
        "examples": unexplained[:5],
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
