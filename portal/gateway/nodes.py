"""The sockets that agents dial for streams. One event loop per gateway; nothing here waits for one stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from django.db import DatabaseError

from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import LARGE_PIECES, Challenge, Message, Refused, StreamHello, Welcome
from nodeagent.protocol.streams import Event, Kind, StreamConnection, StreamProtocolError
from portal.agents.admission import ProvenNode, prove_streams
from portal.agents.consumers import (
    CLOSE_BAD_FRAME,
    CLOSE_LATER,
    CLOSE_REFUSED,
    CLOSE_REPLACED,
    HELLO_WITHIN_S,
)
from portal.agents.errors import AgentRefused
from portal.agents.handshake import MOST_HELLO_BYTES, UnprovenSockets
from portal.agents.portal_key import proofs, public_key
from portal.common.errors import Unavailable
from portal.gateway.database import in_database

log = logging.getLogger(__name__)
AsgiMessage = dict[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]

# What a welcome says of heartbeats means nothing here; pings of the socket itself tell that the other end lives.
_QUIET_S: Final = 3600
_waiting = UnprovenSockets()


class StreamUser(Protocol):
    """Who has a stream on a node."""

    def on_event(self, event: Event) -> None:
        """Take what the node said; never waits."""
        ...

    def on_lost(self) -> None:
        """The node's socket is gone."""
        ...


class NodeLink:
    """One agent's socket: its streams, and who has them."""

    def __init__(self, node: ProvenNode) -> None:
        self.node = node
        self.closing: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._streams = StreamConnection(is_portal=True)
        self._users: dict[int, StreamUser] = {}
        self._wake = asyncio.Event()

    def close(self, code: int) -> None:
        """End the socket; the first code counts."""
        if not self.closing.done():
            self.closing.set_result(code)

    # Streams; a node that does not read what is said to it loses its socket, and nothing is raised here.

    def open(self, user: StreamUser, wish: dict[str, Any]) -> int:
        """Ask for a stream; returns its number, 0 where the node takes no more."""
        try:
            stream = self._streams.open(wish)
        except StreamProtocolError:
            self.close(CLOSE_LATER)
            return 0
        self._users[stream] = user
        self._wake.set()
        return stream

    def send(self, stream: int, data: bytes | memoryview) -> int:
        """Send as much as the node has room for; returns how much."""
        taken = self._streams.send(stream, data)
        self._wake.set()
        return taken

    def say(self, stream: int, message: dict[str, Any]) -> None:
        """Send a word beside the bytes."""
        self._carefully(lambda: self._streams.say(stream, message))

    def consumed(self, stream: int, count: int) -> None:
        """Say that bytes were drawn."""
        self._carefully(lambda: self._streams.consumed(stream, count))

    def end(self, stream: int) -> None:
        """Send no more bytes; the other direction goes on. Safe to repeat."""
        self._carefully(lambda: self._streams.end(stream))

    def reset(self, stream: int, code: str) -> None:
        """End a stream. Safe to repeat."""
        self._users.pop(stream, None)
        self._carefully(lambda: self._streams.reset(stream, code))

    def _carefully(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StreamProtocolError as no:
            log.warning("node %s is let go: %s", self.node.name, no)
            self.close(CLOSE_LATER)
        self._wake.set()

    # The socket

    async def serve(self, receive: Receive, send: Send) -> None:
        """Carry frames until either side ends it, then tell whoever has a stream."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._read(receive)), loop.create_task(self._write(send))]
        try:
            await self.closing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            users, self._users = list(self._users.values()), {}
            for user in users:
                user.on_lost()

    async def _read(self, receive: Receive) -> None:
        try:
            while (message := await receive())["type"] == "websocket.receive":
                frame = message.get("bytes")
                if frame is None:
                    raise StreamProtocolError("bad_kind", "streams are binary")
                event = self._streams.receive(frame)
                if event is not None:
                    self._hand_on(event)
                if self._streams.is_waiting:
                    self._wake.set()
            self.close(0)
        except StreamProtocolError as no:
            log.warning("node %s broke the rules of streams: %s", self.node.name, no)
            self.close(CLOSE_BAD_FRAME)

    def _hand_on(self, event: Event) -> None:
        if event.kind is Kind.OPEN:  # agents ask for nothing
            self._streams.reset(event.stream, "not_asked")
            return
        user = self._users.get(event.stream)
        if event.kind is Kind.RESET:
            self._users.pop(event.stream, None)
        if user is not None:
            user.on_event(event)

    async def _write(self, send: Send) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for frame in self._streams.take_frames():
                    await send({"type": "websocket.send", "bytes": frame})
        except (OSError, RuntimeError):
            self.close(0)


links: dict[int, NodeLink] = {}


async def greeted(scope: AsgiMessage, receive: Receive, send: Send) -> ProvenNode | None:
    """Accept an agent's socket and learn whose it is; None where it was turned away."""
    await receive()
    address = str((scope.get("client") or ("",))[0])
    if not _waiting.enter(address):
        await send({"type": "websocket.close", "code": CLOSE_LATER})
        return None
    try:
        await send({"type": "websocket.accept"})
        return await _greet(receive, send)
    finally:
        _waiting.leave(address)


async def agent_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one agent's socket from challenge to close."""
    node = await greeted(scope, receive, send)
    if node is None:
        return
    link = NodeLink(node)
    older, links[node.node_id] = links.get(node.node_id), link
    if older is not None:
        older.close(CLOSE_REPLACED)
    log.info("streams of node %s", node.name)
    try:
        await link.serve(receive, send)
    finally:
        if links.get(node.node_id) is link:
            del links[node.node_id]
    if link.closing.done() and link.closing.result():
        await _close(send, link.closing.result())


async def _greet(receive: Receive, send: Send) -> ProvenNode | None:
    """Challenge and welcome, or say why not and close."""
    nonce = secrets.token_hex(32)
    try:
        await _say(send, Challenge(nonce))
        async with asyncio.timeout(HELLO_WITHIN_S):
            message = await receive()
        if message["type"] != "websocket.receive":
            return None
        frame = message.get("text") or ""
        if len(frame) > MOST_HELLO_BYTES:
            raise ProtocolError("too_large", f"a first frame has at most {MOST_HELLO_BYTES} bytes")
        hello = decode(frame)
        if not isinstance(hello, StreamHello):
            raise AgentRefused("not_introduced", "Say hello first.")
        node = await in_database(lambda: prove_streams(hello, nonce=nonce))
        shown = proofs(
            nonce=nonce, agent_nonce=hello.nonce, node=node.name, public_key=node.public_key.hex(),
            epoch=node.epoch,
        )  # fmt: skip
        shared = (LARGE_PIECES,) if LARGE_PIECES in node.features else ()
        await _say(send, Welcome(node.name, node.epoch, _QUIET_S, _QUIET_S, shared, public_key(), shown))
        return node
    except TimeoutError:
        await _refuse(send, "too_late", f"Say hello within {HELLO_WITHIN_S} seconds.", CLOSE_REFUSED)
    except ProtocolError as no:
        await _refuse(send, no.code, no.detail, CLOSE_BAD_FRAME)
    except AgentRefused as no:
        log.warning("an agent's streams were refused: %s (%s)", no.code, no.why or no.detail)
        await _refuse(send, no.code, no.detail, CLOSE_REFUSED)
    except (DatabaseError, Unavailable) as no:
        log.warning("an agent could not be looked up: %s", no)
        await _refuse(send, "unavailable", "The portal cannot look this up now. Connect again.", CLOSE_LATER)
    return None


async def _say(send: Send, message: Message) -> None:
    await send({"type": "websocket.send", "text": encode(message)})


async def _refuse(send: Send, code: str, detail: str, close: int) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        await _say(send, Refused(code, detail))
    await _close(send, close)


async def _close(send: Send, code: int) -> None:
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(2):
            await send({"type": "websocket.close", "code": code})
