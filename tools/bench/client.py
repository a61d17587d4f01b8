"""What latency and throughput share: a person's connections and the changes they hear of."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from portal.demo.trace.calls import Body, Connection, Origin, TraceClient
from portal.demo.trace.live import Event, LiveNews


class BenchClient:
    """One person at one portal, by the monotonic clock of this process."""

    def __init__(self, url: str, world: dict[str, Any], *, connections: int) -> None:
        self.origin = Origin.of(url)
        self.token = world["token"]
        self.body: Body = {"flavor": world["flavor"], "team": world["team"], "duration_s": 600}
        self.connections = [Connection(self.origin) for _ in range(connections)]
        self.api = TraceClient(self.origin, connections=connections)
        self.heard: dict[str, dict[str, float]] = defaultdict(dict)
        self.leases: dict[str, str] = {}
        self._news = LiveNews(self.origin, self.token, self._take, self._gap)
        self._changed = asyncio.Event()

    async def open(self) -> None:
        await self._news.open()

    async def close(self) -> None:
        await self._news.close()
        await self.api.close()
        for connection in self.connections:
            connection.close()

    def on_event(self, event: Event) -> None:
        """Hear of a change; benchmarks that act on events replace this."""

    def _take(self, event: Event) -> None:
        self.heard[event["request"]].setdefault(event["event"], time.monotonic())
        if event["lease"]:
            self.leases[event["request"]] = event["lease"]
        self.on_event(event)
        self._changed.set()

    def _gap(self) -> None:
        raise RuntimeError("the live socket broke: figures would be wrong")

    async def submit(self, connection: Connection) -> tuple[str, float]:
        """Ask for one lease; returns the request and when it was sent."""
        sent = time.monotonic()
        answer = await connection.call("POST", "/api/v1/requests/", token=self.token, body=self.body)
        if answer.status != 201:
            raise RuntimeError(f"refused: {answer.status} {answer.body}")
        return answer.body["id"], sent

    async def release(self, connection: Connection, lease: str) -> None:
        path = f"/api/v1/leases/{lease}/release/"
        answer = await connection.call("POST", path, token=self.token, body={})
        if answer.status != 200:
            raise RuntimeError(f"not released: {answer.status} {answer.body}")

    async def until(self, request: str, event: str, *, within_s: float = 30.0) -> float:
        """Return when an event of a request was heard."""
        async with asyncio.timeout(within_s):
            while event not in self.heard[request]:
                self._changed.clear()
                await self._changed.wait()
        return self.heard[request][event]
