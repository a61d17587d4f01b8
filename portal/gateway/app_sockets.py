"""WebSockets on the hosts of apps: whole messages between browser and gateway, a byte stream to the lease."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from nodeagent.protocol.lease_streams import READY
from portal.gateway import app_cookies
from portal.gateway.app_proxy import address_of, cookie_of, is_foreign, to_lease, visit_or_code
from portal.gateway.catalogue import app_of
from portal.gateway.lease_stream import LeaseStream, StreamLostError
from portal.gateway.nodes import AsgiMessage, Receive, Send
from portal.gateway.visits import AppVisit, TooManyError

MOST_MESSAGE: Final = 16 * 1024 * 1024
# Messages that are not whole yet, over all sockets of a visit.
MOST_PARTIAL: Final = 32 * 1024 * 1024
SHAKE_WITHIN_S: Final = 30.0
GOING_AWAY, TOO_BIG, NOT_ALLOWED, AGAIN = 1001, 1009, 4403, 4503
OF_HANDSHAKE: Final = frozenset({
    b"host", b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
    b"content-length",
})  # fmt: skip


async def app_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one WebSocket on an app's host: refused with a close before it is accepted, or carried to its end."""
    await receive()
    headers = scope["headers"]
    found = address_of(headers)
    app = app_of(found[0]) if found else None
    cookie, age_s = cookie_of(headers, app, found[1]) if found and app else (None, 0.0)
    is_known = cookie is not None and age_s <= app_cookies.GOOD_FOR_S
    # Without an Origin it is no page that asks, and nothing but a page has a cookie of ours.
    has_origin = any(name == b"origin" for name, _value in headers)
    if app is None or cookie is None or not is_known or not has_origin or is_foreign(scope, headers):
        await send({"type": "websocket.close", "code": NOT_ALLOWED})
        return
    visit = await visit_or_code(cookie, app)
    if isinstance(visit, str) or visit.word.state != READY:
        await send({"type": "websocket.close", "code": AGAIN})
        return
    try:
        async with visit.request():
            await _carry(scope, receive, send, visit)
    except TooManyError:
        await send({"type": "websocket.close", "code": AGAIN})


async def _carry(scope: AsgiMessage, receive: Receive, send: Send, visit: AppVisit) -> None:
    stream: LeaseStream | None = None
    try:
        async with asyncio.timeout(SHAKE_WITHIN_S):
            stream = await visit.upstream.stream()
            protocol = await _shake(scope, stream, visit)
        await send({"type": "websocket.accept", "subprotocol": protocol.subprotocol})
    except (StreamLostError, WebSocketException, TimeoutError, ValueError):
        if stream is not None:
            visit.upstream.close(stream)
        visit.look_again()
        await send({"type": "websocket.close", "code": AGAIN})
        return
    relay = _Relay(stream, protocol, visit)
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(relay.to_lease(receive)),
        loop.create_task(relay.to_browser(send)),
        loop.create_task(visit.ended()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        relay.release()
        visit.upstream.close(stream)
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.close", "code": relay.code})


async def _shake(scope: AsgiMessage, stream: LeaseStream, visit: AppVisit) -> ClientProtocol:
    """Open a WebSocket at the lease's side; raises WebSocketException where the program wants none."""
    target = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    try:
        uri = parse_uri(f"ws://lease{target}")
    except InvalidURI as no:
        raise ValueError(target) from no
    wanted = [Subprotocol(one) for one in scope.get("subprotocols") or ()]
    protocol = ClientProtocol(uri, subprotocols=wanted or None, max_size=MOST_MESSAGE)
    request = protocol.connect()
    del request.headers["Host"]
    host = next(value for name, value in scope["headers"] if name == b"host")
    request.headers["Host"] = host.decode("latin-1")
    for name, value in to_lease(scope["headers"], visit):
        if name not in OF_HANDSHAKE:
            request.headers[name.decode("latin-1")] = value.decode("latin-1")
    protocol.send_request(request)
    await stream.write(b"".join(protocol.data_to_send()))
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        data = await stream.read()
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
    if protocol.handshake_exc is not None:
        raise InvalidHandshake(str(protocol.handshake_exc)) from protocol.handshake_exc
    return protocol


class _Relay:
    """Both directions of one socket."""

    def __init__(self, stream: LeaseStream, protocol: ClientProtocol, visit: AppVisit) -> None:
        self.code = GOING_AWAY
        self._stream, self._protocol, self._visit = stream, protocol, visit
        self._writing = asyncio.Lock()
        self._partial = 0

    def release(self) -> None:
        """Count what was not whole no more."""
        self._visit.partial -= self._partial
        self._partial = 0

    async def to_lease(self, receive: Receive) -> None:
        """Hand messages of the browser on, until it leaves."""
        while (message := await receive())["type"] == "websocket.receive":
            data, text = message.get("bytes"), message.get("text")
            if data is not None:
                self._protocol.send_binary(data)
            else:
                self._protocol.send_text((text or "").encode())
            self._visit.sent += len(data if data is not None else text or "")
            await self._flush()
        self._protocol.send_close(message.get("code") if 1000 <= (message.get("code") or 0) < 1015 else None)
        with contextlib.suppress(StreamLostError):
            await self._flush()

    async def to_browser(self, send: Send) -> None:
        """Hand messages of the lease on, until it says no more."""
        pieces: list[bytes] = []
        is_text = False
        with contextlib.suppress(StreamLostError):
            while data := await self._stream.read():
                self._protocol.receive_data(data)
                self._count(self._partial + len(data))
                for event in self._protocol.events_received():
                    if not isinstance(event, Frame) or event.opcode not in (
                        Opcode.TEXT,
                        Opcode.BINARY,
                        Opcode.CONT,
                    ):
                        continue
                    if event.opcode is not Opcode.CONT:
                        is_text = event.opcode is Opcode.TEXT
                    pieces.append(bytes(event.data))
                    if event.fin:
                        await self._say(send, b"".join(pieces), is_text=is_text)
                        pieces.clear()
                        self._count(0)
                await self._flush()
                if self._visit.partial > MOST_PARTIAL:
                    self.code = TOO_BIG
                    return
                if self._protocol.state is not State.OPEN:
                    self.code = self._protocol.close_code or GOING_AWAY
                    if self.code in (1005, 1006, 1015):
                        self.code = 1000
                    return

    async def _say(self, send: Send, data: bytes, *, is_text: bool) -> None:
        self._visit.shown += len(data)
        if is_text:
            await send({"type": "websocket.send", "text": data.decode(errors="replace")})
        else:
            await send({"type": "websocket.send", "bytes": data})

    def _count(self, partial: int) -> None:
        self._visit.partial += partial - self._partial
        self._partial = partial

    async def _flush(self) -> None:
        async with self._writing:
            await self._stream.write(b"".join(self._protocol.data_to_send()))
