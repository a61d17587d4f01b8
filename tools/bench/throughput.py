"""1,000 single-GPU requests at once on 16 GPUs, each released by the client as soon as it is active.

Counts from the first POST to the last lease ``ended``, which is when its node has confirmed it clean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from portal.demo.trace.calls import Connection
from portal.demo.trace.live import Event
from tools.bench import machine, stack
from tools.bench.client import BenchClient

COUNT, SUBMITTERS, RELEASERS = 1000, 4, 4
WITHIN_S = 300.0


def measure() -> dict[str, Any]:
    with stack.running(is_demo=False) as here:
        world = here.start_bench_fleet()
        asyncio.run(Flood(here.url, world, 32).run())  # warm: first requests pay for imports and plans
        before = machine.cpu_ms(here.pids())
        found = asyncio.run(Flood(here.url, world, COUNT).run())
        return found | {"cpu_ms": machine.cpu_per_request(before, machine.cpu_ms(here.pids()), COUNT)}


class Flood:
    """One flood of requests and their ends."""

    def __init__(self, url: str, world: dict[str, Any], count: int) -> None:
        self._count = count
        self._client = BenchClient(url, world, connections=SUBMITTERS + RELEASERS)
        self._client.on_event = self._take  # type: ignore[method-assign]
        self._active: asyncio.Queue[str] = asyncio.Queue()
        self._ended: set[str] = set()
        self._last_end = 0.0
        self._done = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        await self._client.open()
        connections, tickets = self._client.connections, iter(range(self._count))
        began = time.monotonic()
        releasers = [asyncio.create_task(self._release(c)) for c in connections[SUBMITTERS:]]
        try:
            await asyncio.gather(*(self._submit(c, tickets) for c in connections[:SUBMITTERS]))
            accepted = time.monotonic() - began
            async with asyncio.timeout(WITHIN_S):
                await self._done.wait()
        finally:
            for task in releasers:
                task.cancel()
            await self._client.close()
        took = self._last_end - began
        return {
            "requests": self._count,
            "finished_per_s": round(self._count / took, 1),
            "seconds": round(took, 2),
            "accepted_per_s": round(self._count / accepted, 1),
        }

    async def _submit(self, connection: Connection, tickets: Iterator[int]) -> None:
        for _ticket in tickets:
            await self._client.submit(connection)

    async def _release(self, connection: Connection) -> None:
        while True:
            await self._client.release(connection, await self._active.get())

    def _take(self, event: Event) -> None:
        if event["event"] == "lease.active":
            self._active.put_nowait(event["lease"])
        elif event["event"] == "lease.ended":
            self._ended.add(event["lease"])
            self._last_end = time.monotonic()
            if len(self._ended) == self._count:
                self._done.set()
