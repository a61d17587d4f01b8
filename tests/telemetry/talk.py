"""A socket's other end in the same event loop: what a browser would send and get, without a network."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from channels.routing import URLRouter

from portal import sockets

PATIENCE_S = 5


class Talk:
    """One connection to the portal's sockets. ``hold`` makes it a reader that takes nothing."""

    def __init__(self, path: str = "/ws/live/", *, token: str = "", **headers: str) -> None:
        given = {"host": "testserver", **headers}
        if token:
            given["authorization"] = f"Bearer {token}"
        self.scope = {
            "type": "websocket",
            "path": path,
            "headers": [(key.encode(), value.encode()) for key, value in given.items()],
        }
        self.accepted = False
        self.code: int | None = None
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._flow = asyncio.Event()
        self._flow.set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Talk:
        await self._in.put({"type": "websocket.connect"})
        self._task = asyncio.create_task(URLRouter(sockets.routes)(self.scope, self._in.get, self._send))
        first = await self._next()
        self.accepted = first["type"] == "websocket.accept"
        if not self.accepted:
            self.code = first["code"]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._in.put({"type": "websocket.disconnect", "code": 1001})
        self.resume()
        assert self._task is not None
        await asyncio.wait_for(self._task, PATIENCE_S)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._flow.wait()
        await self._out.put(message)

    async def _next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self._out.get(), PATIENCE_S)

    def hold(self) -> None:
        """Read no more."""
        self._flow.clear()

    def resume(self) -> None:
        """Read again."""
        self._flow.set()

    async def say(self, message: Any) -> None:
        """Send a value as JSON, or text and bytes as they are."""
        if isinstance(message, bytes):
            await self._in.put({"type": "websocket.receive", "bytes": message})
        else:
            text = message if isinstance(message, str) else json.dumps(message)
            await self._in.put({"type": "websocket.receive", "text": text})

    async def hear(self) -> dict[str, Any]:
        """Return the next message; fails when the portal closed instead."""
        message = await self._next()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def subscribe(self, *topics: str) -> list[dict[str, Any]]:
        """Subscribe and return one answer per topic."""
        await self.say({"op": "subscribe", "topics": list(topics)})
        return [await self.hear() for _ in topics]

    async def ended(self) -> int:
        """Return the close code, reading over what comes before it."""
        while self.code is None:
            message = await self._next()
            if message["type"] == "websocket.close":
                self.code = message["code"]
        return self.code

    async def is_quiet(self) -> bool:
        """Say whether nothing waits: a ping is answered before anything else."""
        await self.say({"op": "ping"})
        return (await self.hear())["type"] == "pong"
