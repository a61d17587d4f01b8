"""HTTP/1.1 to a program in a lease, over a stream. Connections are kept; what a lease answers is hostile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import h11

from nodeagent.protocol.lease_streams import OpenSocket, wire
from portal.gateway.lease_stream import LeaseStream, StreamLostError
from portal.gateway.nodes import NodeLink

MOST_IDLE: Final = 16
MOST_HEAD: Final = 64 * 1024
FIRST_ANSWER_WITHIN_S: Final = 120.0
HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
    b"trailer", b"trailers", b"transfer-encoding", b"upgrade",
})  # fmt: skip
Headers = list[tuple[bytes, bytes]]


class BadAnswerError(Exception):
    """The lease's program gave no answer that HTTP knows; ``code`` is stable."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked: ``body`` yields pieces, None where there is none; ``target`` as the browser wrote it."""

    method: bytes
    target: bytes
    headers: Headers
    body: Callable[[], AsyncIterator[bytes]] | None


def without_hops(headers: Headers) -> Headers:
    """Return headers without those that are between two neighbours alone, the ones that Connection names included."""
    named = {
        one.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for one in value.split(b",")
    }
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP | named]


class Upstream:
    """The connections to one program in one lease."""

    def __init__(self, link: NodeLink, where: OpenSocket) -> None:
        self._link = link
        self._where = where
        self._idle: list[_Connection] = []
        self._open: set[LeaseStream] = set()

    @property
    def count(self) -> int:
        """Return how many streams there are, idle ones included."""
        return len(self._open)

    async def stream(self) -> LeaseStream:
        """Open a stream of one's own; give it back with ``close``. Raises StreamLostError."""
        stream = LeaseStream(self._link)
        self._open.add(stream)
        try:
            await stream.open(wire(self._where))
        except BaseException:
            self.close(stream)
            raise
        return stream

    def close(self, stream: LeaseStream) -> None:
        """End a stream. Safe to repeat."""
        self._open.discard(stream)
        stream.reset()

    def end(self, code: str) -> None:
        """End all streams at once."""
        for stream in list(self._open):
            stream.reset(code)
        self._open.clear()
        self._idle.clear()

    async def exchange(
        self,
        request: HttpRequest,
        answer: Callable[[h11.Response], Awaitable[None]],
        piece: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Ask and hand on the answer as it comes: its head, then its pieces, each awaited.

        Raises BadAnswerError, before ``answer`` was called or in the midst of the body, and StreamLostError.
        """
        connection, is_fresh = await self._connection()
        try:
            try:
                head = await connection.ask(request)
            except (StreamLostError, BadAnswerError):
                # An idle connection may have been closed at the other end. A request without a body is asked again.
                if is_fresh or request.body is not None or connection.has_heard:
                    raise
                self.close(connection.stream)
                connection = _Connection(await self.stream())
                head = await connection.ask(request)
            await answer(head)
            async for data in connection.pieces():
                await piece(data)
            if connection.is_reusable and len(self._idle) < MOST_IDLE:
                connection.reuse()
                self._idle.append(connection)
            else:
                self.close(connection.stream)
        except BaseException:
            self.close(connection.stream)
            raise
        finally:
            await connection.stop()

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.stream.is_idle:
                return connection, False
            self.close(connection.stream)
        return _Connection(await self.stream()), True


class _Connection:
    """One stream with HTTP on it; one request at a time."""

    def __init__(self, stream: LeaseStream) -> None:
        self.stream = stream
        self.has_heard = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, request: HttpRequest) -> h11.Response:
        """Send a request, its body beside, and return the head of the answer."""
        self.has_heard = False
        try:
            asked = h11.Request(method=request.method, target=request.target, headers=request.headers)
            data = self._http.send(asked) or b""
            if request.body is None:
                data += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as no:
            raise BadAnswerError("bad_request", str(no)) from no
        await self.stream.write(data)
        if request.body is not None:
            self._sender = asyncio.get_running_loop().create_task(self._send(request.body))
        try:
            async with asyncio.timeout(FIRST_ANSWER_WITHIN_S):
                while True:
                    event = await self._next()
                    if isinstance(event, h11.Response):
                        return event
                    if not isinstance(event, h11.InformationalResponse):
                        raise BadAnswerError("no_answer")
                    if event.status_code == 101:
                        raise BadAnswerError("bad_answer", "an upgrade that nobody asked for")
        except TimeoutError as no:
            # The clock runs from the end of the request: a long upload is no silence.
            if self._sender is not None and not self._sender.done():
                raise BadAnswerError("slow_upload") from no
            raise BadAnswerError("no_answer") from no

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer's body."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return

    async def _next(self) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as no:
                raise BadAnswerError("bad_answer", str(no)) from no
            if event is h11.PAUSED:
                return h11.ConnectionClosed()
            if event is not h11.NEED_DATA:
                return event
            data = await self.stream.read()
            self.has_heard = self.has_heard or bool(data)
            try:
                self._http.receive_data(data)
            except h11.RemoteProtocolError as no:
                raise BadAnswerError("bad_answer", str(no)) from no

    async def _send(self, body: Callable[[], AsyncIterator[bytes]]) -> None:
        """Send a body as it comes; an answer that came before its end has said enough."""
        with contextlib.suppress(h11.LocalProtocolError, StreamLostError):
            async for data in body():
                await self.stream.write(self._http.send(h11.Data(data=data)) or b"")
            await self.stream.write(self._http.send(h11.EndOfMessage()) or b"")

    @property
    def is_reusable(self) -> bool:
        """Say whether both sides are done with the request and keep the connection."""
        return (
            self.stream.is_idle
            and self._http.our_state is h11.DONE
            and self._http.their_state is h11.DONE
            and self._http.trailing_data == (b"", False)
        )

    def reuse(self) -> None:
        """Be ready for the next request."""
        self._http.start_next_cycle()

    async def stop(self) -> None:
        """Send no more of a body that nobody waits for."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
            self._sender = None
