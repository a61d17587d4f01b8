from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import (
    Ack,
    Challenge,
    Desired,
    DesiredLease,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Report,
    Samples,
    Welcome,
)
from nodeagent.protocol.signing import challenge_text, portal_text

PATIENCE_S = 5


class FakePortal:
    """A portal of one node in this process: keeps what it hears, sends what it is told to."""

    def __init__(self, token: str = "once") -> None:
        self.token = token
        self.key = ""
        self.own_key = Ed25519PrivateKey.generate()
        self.public_key = self.own_key.public_key().public_bytes_raw().hex()
        self.epoch = 0
        self.revision = 0
        self.is_acking = True
        self.refusal: Refused | None = None
        self.features: tuple[str, ...] = ()
        self.gateways: tuple[str, ...] = ()
        self.hellos: list[Hello] = []
        self.heard: list[Message] = []
        self.socket: ServerConnection | None = None
        self.paths: list[str] = []
        self._news = asyncio.Condition()

    async def serve_one(self, socket: ServerConnection) -> None:
        self.paths.append(socket.request.path if socket.request else "")
        try:
            await self._greet(socket)
            async for frame in socket:
                await self._hear(socket, decode(frame))
        except ConnectionClosed:
            return

    async def _greet(self, socket: ServerConnection) -> None:
        nonce = secrets.token_hex(32)
        await socket.send(encode(Challenge(nonce)))
        hello = decode(await socket.recv())
        assert isinstance(hello, Hello)
        self.hellos.append(hello)
        refusal = self.refusal or self._judge(hello, nonce)
        if refusal is not None:
            await socket.send(encode(refusal))
            await socket.close(4401)
            return
        self.socket = socket
        await socket.send(encode(self._welcome(hello, nonce)))

    def _welcome(self, hello: Hello, nonce: str) -> Welcome:
        welcome = Welcome(hello.node, self.epoch, 1, 1, self.features, gateways=self.gateways)
        if not hello.nonce:
            return welcome
        own = self.public_key
        text = portal_text(
            nonce=nonce, agent_nonce=hello.nonce, node=hello.node, public_key=self.key, epoch=self.epoch,
            portal_key=own,
        )  # fmt: skip
        return replace(welcome, portal_key=own, proofs={own: self.own_key.sign(text).hex()})

    def _judge(self, hello: Hello, nonce: str) -> Refused | None:
        if hello.enrol_token:
            if hello.enrol_token != self.token:
                return Refused("bad_token", "This token was used. Ask for a new one.")
            self.token, self.key, self.epoch = "", hello.public_key, self.epoch + 1
        if not self.key:
            return Refused("not_enrolled", "Start the agent with an enrolment token.")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
        key.verify(
            bytes.fromhex(hello.signature), challenge_text(nonce, hello.node, hello.nonce, hello.portal_key)
        )
        return None

    async def _hear(self, socket: ServerConnection, message: Message) -> None:
        if isinstance(message, Report) and self.is_acking:
            await socket.send(encode(Ack(message.seq)))
        async with self._news:
            self.heard.append(message)
            self._news.notify_all()

    async def desire(self, *leases: DesiredLease, node: str = "gpu-01") -> None:
        self.revision += 1
        await self.send(encode(Desired(node, self.epoch, self.revision, leases)))

    async def send(self, frame: str | bytes) -> None:
        assert self.socket is not None
        await self.socket.send(frame)

    async def until(self, wanted, what: str = "") -> Message:  # type: ignore[no-untyped-def]
        """Return the first message, heard already or later, for which ``wanted`` holds."""

        def found() -> Message | None:
            return next((message for message in self.heard if wanted(message)), None)

        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: found() is not None)
        message = found()
        assert message is not None, what
        return message

    async def phase(self, lease: str, phase: str) -> Report:
        report = await self.until(
            lambda m: isinstance(m, Report) and any((x.lease, x.phase) == (lease, phase) for x in m.leases)
        )
        assert isinstance(report, Report)
        return report

    async def kind(self, kind: type[Report] | type[Samples] | type[Heartbeat]) -> Message:
        return await self.until(lambda m: isinstance(m, kind))

    def forget(self) -> None:
        self.heard.clear()


@asynccontextmanager
async def listening(portal: FakePortal, port: int = 0) -> AsyncIterator[int]:
    async with serve(portal.serve_one, "127.0.0.1", port, compression=None) as server:
        yield port_of(server)


def port_of(server: Server) -> int:
    port: int = next(iter(server.sockets)).getsockname()[1]
    return port
