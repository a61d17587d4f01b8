"""A gateway of one node in this process: proves itself, opens streams, keeps what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import Challenge, StreamHello, Welcome
from nodeagent.protocol.signing import portal_text, stream_text
from nodeagent.protocol.streams import Event, Kind, StreamConnection
from tests.agent.fake_portal import FakePortal

PATIENCE_S = 10


class FakeGateway:
    def __init__(self, portal: FakePortal) -> None:
        self.portal = portal
        self.own_key: Ed25519PrivateKey = portal.own_key
        self.paths: list[str] = []
        self.hellos: list[StreamHello] = []
        self.socket: ServerConnection | None = None
        self.is_drawing = True
        self.shown: dict[int, bytes] = defaultdict(bytes)
        self.held: dict[int, int] = defaultdict(int)
        self.events: list[Event] = []
        self._news = asyncio.Condition()

    async def serve_one(self, socket: ServerConnection) -> None:
        self.paths.append(socket.request.path if socket.request else "")
        with contextlib.suppress(ConnectionClosed):
            await self._greet(socket)
            self.streams = StreamConnection(is_portal=True)
            async with self._news:
                self.socket = socket
                self._news.notify_all()
            async for frame in socket:
                assert isinstance(frame, bytes)
                await self._hear(frame)
        async with self._news:
            self.socket = None
            self._news.notify_all()

    async def _greet(self, socket: ServerConnection) -> None:
        nonce = secrets.token_hex(32)
        await socket.send(encode(Challenge(nonce)))
        hello = decode(await socket.recv())
        assert isinstance(hello, StreamHello)
        self.hellos.append(hello)
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.portal.key)).verify(
            bytes.fromhex(hello.signature),
            stream_text(
                nonce=nonce, agent_nonce=hello.nonce, node=hello.node, epoch=hello.epoch,
                portal_key=hello.portal_key,
            ),
        )  # fmt: skip
        public = self.own_key.public_key().public_bytes_raw().hex()
        text = portal_text(
            nonce=nonce, agent_nonce=hello.nonce, node=hello.node, public_key=self.portal.key,
            epoch=self.portal.epoch, portal_key=public,
        )  # fmt: skip
        proofs = {public: self.own_key.sign(text).hex()}
        await socket.send(
            encode(Welcome(hello.node, self.portal.epoch, 5, 1, portal_key=public, proofs=proofs))
        )

    async def _hear(self, frame: bytes) -> None:
        event = self.streams.receive(frame)
        if event is None:
            return
        async with self._news:
            if event.kind is Kind.DATA:
                self.shown[event.stream] += event.data
                self.held[event.stream] += len(event.data)
                if self.is_drawing:
                    self.draw(event.stream)
            else:
                self.events.append(event)
            self._news.notify_all()
        await self.flush()

    def draw(self, stream: int) -> None:
        self.streams.consumed(stream, self.held.pop(stream, 0))

    async def flush(self) -> None:
        for frame in self.streams.take_frames():
            assert self.socket is not None
            await self.socket.send(frame)

    async def until(self, question: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(question)
        return question()

    async def connected(self) -> None:
        await self.until(lambda: self.socket is not None)

    async def open(self, lease: str, generation: int = 1, terminal: str = "", **more: Any) -> int:
        """Ask for a terminal and return its stream once it is answered or refused."""
        await self.connected()
        wish = {"kind": "pty", "lease": lease, "generation": generation, "rows": 40, "columns": 120}
        stream = self.streams.open({**wish, "terminal": terminal, **more})
        await self.flush()
        await self.until(lambda: self.said(stream, Kind.OPENED) or self.said(stream, Kind.RESET))
        return stream

    async def ask(self, kind: str, lease: str, *, generation: int = 1, **wish: Any) -> int:
        """Ask for a stream of any kind and return it once it is answered or refused."""
        await self.connected()
        stream = self.streams.open({"kind": kind, "lease": lease, "generation": generation, **wish})
        await self.flush()
        await self.until(lambda: self.said(stream, Kind.OPENED) or self.said(stream, Kind.RESET))
        return stream

    def words(self, stream: int) -> list[dict[str, Any]]:
        return [dict(e.body) for e in self.events if (e.stream, e.kind) == (stream, Kind.CTL)]

    def said(self, stream: int, kind: Kind) -> Event | None:
        return next((e for e in self.events if (e.stream, e.kind) == (stream, kind)), None)

    async def type(self, stream: int, text: str) -> None:
        assert self.streams.send(stream, text.encode()) == len(text.encode())
        await self.flush()

    async def shows(self, stream: int, text: str) -> bytes:
        await self.until(lambda: text.encode() in self.shown[stream])
        return self.shown[stream]

    async def is_reset(self, stream: int) -> dict[str, Any]:
        event = await self.until(lambda: self.said(stream, Kind.RESET))
        return dict(event.body)
