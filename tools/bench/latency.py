"""Submit to active on an idle cluster: from sending the POST to the event on the socket, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from tools.bench import machine, stack
from tools.bench.client import BenchClient

WARM_UP, COUNT = 20, 240


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        before = machine.cpu_ms(here.pids())
        found = asyncio.run(ask(here.url, world, COUNT))
        after = machine.cpu_ms(here.pids())
    return found | {"cpu_ms": machine.cpu_per_request(before, after, COUNT + WARM_UP)}


async def ask(url: str, world: dict[str, Any], count: int) -> dict[str, Any]:
    client = BenchClient(url, world, connections=1)
    await client.open()
    try:
        found = [await _one(client) for _ in range(WARM_UP + count)][WARM_UP:]
    finally:
        await client.close()
    names = ("submit", "submit_to_active", "release_to_clean")
    return {"requests": count} | {
        f"{name}_ms": _figures([row[i] for row in found]) for i, name in enumerate(names)
    }


async def _one(client: BenchClient) -> tuple[float, float, float]:
    """Ask for one lease, wait, give it back, wait; returns the three times in seconds."""
    connection = client.connections[0]
    request, sent = await client.submit(connection)
    answered = asyncio.get_running_loop().time()
    active = await client.until(request, "lease.active")
    released = asyncio.get_running_loop().time()
    await client.release(connection, client.leases[request])
    clean = await client.until(request, "lease.ended")
    return answered - sent, active - sent, clean - released


def _figures(values: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds; p99 is the smallest value that 99 % do not pass."""
    found = sorted(value * 1000 for value in values)
    return {
        name: round(found[min(len(found) - 1, -(-len(found) * share // 100) - 1)], 1)
        for name, share in (("p50", 50), ("p90", 90), ("p99", 99), ("max", 100))
    }
