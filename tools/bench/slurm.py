"""A pool of a real Slurm beside ``sbatch`` alone, in the same run on a cluster of its own.

Submit: from the call (``sbatch``) or the POST (Berth) until slurmd has the job's script on its host, which one loop
watches for both; they take turns. Flood: jobs that end at once, four clients, against leases that are released when
they are active. Wants root and the packages that docs/slurm.md names.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.agent.pools.slurm_cluster import ACCOUNT, HOLDER, SlurmCluster, why_no_slurm
from tools.bench import machine, stack
from tools.bench.client import BenchClient
from tools.bench.throughput import Flood

POOL, TURNS, WARM_UP, FLOOD, CLIENTS = "slurm-pool", 20, 2, 500, 4
WORDS = (
    "sbatch", "--parsable", f"--uid={HOLDER}", "--gid=60", "--export=NIL", f"--account={ACCOUNT}", "--partition=gpu",
    "--nodes=1", "--gres=gpu:a100:1", "--time=5", "--chdir=/", "--output=/dev/null", "--error=/dev/null",
)  # fmt: skip


def measure() -> dict[str, Any]:
    if why := why_no_slurm():
        return {"skipped": why}
    with tempfile.TemporaryDirectory(prefix="berth-slurm-") as folder, stack.running(is_demo=False) as here:
        cluster = SlurmCluster(Path(folder))
        with cluster.running():
            world = pool(here, cluster)
            found = asyncio.run(_turns(here.url, world, cluster))
            alone = _flood_alone(cluster, FLOOD)
            leases = asyncio.run(Flood(here.url, world, FLOOD).run())
            before, began = machine.cpu_ms([here.agents[0].pid]), time.monotonic()
            threading.Event().wait(20)
            idle_ms = sum(machine.cpu_ms([here.agents[0].pid]).values()) - sum(before.values())
            return {
                "submit_to_script_ms": found,
                "flood": {
                    "jobs": FLOOD, "sbatch_per_s": round(FLOOD / alone, 1), "leases_per_s": leases["finished_per_s"],
                    "leases_of_sbatch_percent": round(100 * leases["finished_per_s"] * alone / FLOOD),
                },
                "agent_cpu_idle_percent": round(idle_ms / 10 / (time.monotonic() - began), 2),
            }  # fmt: skip


def pool(here: stack.BenchStack, cluster: SlurmCluster) -> dict[str, Any]:
    """Make the rows of the benchmark fleet, and instead of its nodes start the agent of the pool."""
    world: dict[str, Any] = {}
    for module in ("tools.bench.fleet", "tools.bench.slurm"):
        made = subprocess.run(
            [sys.executable, "-m", module],
            cwd=stack.ROOT,
            env=here.environment(),
            capture_output=True,
            check=True,
        )
        world |= json.loads(made.stdout)
    words = {
        "portal": here.url.replace("http", "ws", 1), "node": POOL, "state": str(here.data / "agents" / POOL),
        "driver": "slurm", "slurm-partition": "gpu", "slurm-gres": "gpu:a100", "slurm-model": "a100-80gb",
        "slurm-user": HOLDER, "slurm-account": ACCOUNT, "enrol-token": world["secret"],
    }  # fmt: skip
    options = [part for name, value in words.items() for part in (f"--{name}", value)]
    log = here.data / f"{POOL}.log"
    with log.open("wb") as out:
        agent = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", *options],
            cwd=stack.ROOT, stdout=out, stderr=out, env={**os.environ, **cluster.environ},
        )  # fmt: skip
    here.agents.append(agent)
    _until(lambda: "connected to" in log.read_text())
    return world


def main() -> None:
    """In the environment of the stack: prepare the node of the pool, print its secret."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.agents.services import create_enrol_token
    from portal.common.clock import db_now

    json.dump({"secret": create_enrol_token(node_name=POOL, actor=None, now=db_now()).secret}, sys.stdout)


async def _turns(url: str, world: dict[str, Any], cluster: SlurmCluster) -> dict[str, Any]:
    """Let one job and one lease take turns on the idle cluster."""
    client = BenchClient(url, world, connections=1)
    await client.open()
    alone, berth, active = [], [], []
    try:
        for turn in range(WARM_UP + TURNS):
            script = _Scripts(cluster)
            began = time.monotonic()
            job = await asyncio.to_thread(cluster.do, *WORDS, stdin="#!/bin/sh\nexec /bin/sleep infinity\n")
            begun = await asyncio.to_thread(script.next)
            cluster.do("scancel", job.strip())
            await asyncio.to_thread(_until, lambda: not cluster.live())
            script = _Scripts(cluster)
            seen = asyncio.create_task(asyncio.to_thread(script.next))
            request, sent = await client.submit(client.connections[0])
            ready = await client.until(request, "lease.active")
            started = await seen
            await client.release(client.connections[0], client.leases[request])
            await client.until(request, "lease.ended")
            if turn >= WARM_UP:
                alone.append(begun - began)
                berth.append(started - sent)
                active.append(ready - sent)
    finally:
        await client.close()
    medians = {"sbatch": alone, "berth": berth, "berth_active": active}
    found = {name: round(statistics.median(values) * 1000) for name, values in medians.items()}
    spread = {f"{name}_max": round(max(values) * 1000) for name, values in medians.items()}
    return found | spread | {"more": found["berth"] - found["sbatch"], "turns": TURNS}


class _Scripts:
    """Waits for the next script that slurmd has of any host, from the moment that this is made."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._at = cluster.at
        self._known = self._seen()

    def _seen(self) -> set[str]:
        return {str(path) for path in self._at.glob("spool.n*/job*/slurm_script")}

    def next(self) -> float:
        while not self._seen() - self._known:
            time.sleep(0.003)
        return time.monotonic()


def _flood_alone(cluster: SlurmCluster, count: int) -> float:
    """Return the seconds from the first of ``count`` submissions to the end of the last job."""
    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(lambda _n: cluster.do(*WORDS, stdin="#!/bin/sh\n"), range(count)))
    _until(lambda: not cluster.live())
    return time.monotonic() - began


def _until(ready: Callable[[], bool], within_s: float = 300.0) -> None:
    until = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError("the cluster does not come to an end")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
