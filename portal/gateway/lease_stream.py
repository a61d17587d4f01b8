"""One byte stream into a lease, as something to read from and to write to. What is not read stays in the lease."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from nodeagent.protocol.streams import Event, Kind
from portal.gateway.nodes import NodeLink


class StreamLostError(Exception):
    """The stream is over: ``code`` and ``detail`` as the node said, or "node_away"."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class LeaseStream:
    """A stream to a program in a lease. One reader and one writer at a time."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link
        self._stream = 0
        self._answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._queue: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._is_heard_out = False
        self._lost: StreamLostError | None = None

    @property
    def is_idle(self) -> bool:
        """Say whether it is open both ways and says nothing unasked."""
        return self._lost is None and not self._is_heard_out and not self._queue

    async def open(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Ask for it and return the node's answer; raises StreamLostError where it is refused."""
        self._stream = self._link.open(self, wish)
        if not self._stream:
            self._lost = StreamLostError("node_away")
            raise self._lost
        answer = await self._answer
        if self._lost is not None:
            raise self._lost
        return answer

    async def read(self) -> bytes:
        """Return what came, b"" once the program said all; raises StreamLostError."""
        while not self._queue:
            if self._lost is not None:
                raise self._lost
            if self._is_heard_out:
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._queue.popleft() if len(self._queue) == 1 else b"".join(self._queue)
        self._queue.clear()
        self._link.consumed(self._stream, len(data))
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it, as the program takes it; raises StreamLostError."""
        rest = memoryview(data)
        while rest:
            if self._lost is not None:
                raise self._lost
            self._room.clear()
            rest = rest[self._link.send(self._stream, rest) :]
            if rest:
                await self._room.wait()

    def finish(self) -> None:
        """Write no more; what comes can still be read. Safe to repeat."""
        if self._stream:
            self._link.end(self._stream)

    def reset(self, code: str = "closed") -> None:
        """End it. Safe to repeat."""
        self._lose(StreamLostError(code))
        if self._stream:
            self._link.reset(self._stream, code)

    # What the node says

    def on_event(self, event: Event) -> None:
        """Take what the node said; never waits."""
        if event.kind is Kind.DATA:
            self._queue.append(event.data)
            self._news.set()
        elif event.kind is Kind.OPENED:
            if not self._answer.done():
                self._answer.set_result(event.body)
        elif event.kind is Kind.WINDOW:
            self._room.set()
        elif event.kind is Kind.EOF:
            self._is_heard_out = True
            self._news.set()
        elif event.kind is Kind.RESET:
            code, detail = (str(event.body.get(key, "")) for key in ("code", "detail"))
            self._lose(StreamLostError(code[:60] or "over", detail[:300]))

    def on_lost(self) -> None:
        """The node's socket is gone."""
        self._lose(StreamLostError("node_away"))

    def _lose(self, why: StreamLostError) -> None:
        self._lost = self._lost or why
        if not self._answer.done():
            self._answer.set_result({})
        self._news.set()
        self._room.set()
