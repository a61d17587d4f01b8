"""A gateway on a port of its own, an agent's streams that dial it, and a person's end: one event loop, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from nodeagent.link.address import address_of
from nodeagent.link.identity import Identity
from nodeagent.protocol.messages import STREAMS, DesiredLease, Welcome
from nodeagent.reconcile.lease_records import READY, LeaseRecord, new_record
from nodeagent.streams.gateways import Gateways
from nodeagent.streams.service import LeaseStreams
from nodeagent.workloads.entry import PlayedEntry
from portal.accounts.models import BrowserSession
from portal.agents.portal_key import public_key
from portal.fleet.models import Node
from portal.gateway.application import application
from portal.gateway.nodes import links
from portal.gateway.tickets import make_ticket
from portal.leases.models import Lease
from tests.portal.builders import World
from tests.telemetry.conftest import rows

PATIENCE_S = 10
ANSWER = re.compile(rb"<([^\r\n<>]*)>\r\n")


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[int]:
    """Run the gateway as ``make up`` does, but in this loop."""
    config = uvicorn.Config(
        application, port=port, ws="websockets-sansio", http="httptools", log_config=None, lifespan="on",
        ws_max_size=1 << 20, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    while not server.started:
        assert not task.done(), task.result()
        await asyncio.sleep(0.01)
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await task


def unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class NodeEnd:
    """An agent's side: which of its leases are ready, by (name, generation)."""

    node: str
    state: Path
    ready: dict[tuple[str, int], LeaseRecord] = field(default_factory=dict)

    async def enrol(self, leases: list[Lease]) -> None:
        self.identity = Identity(self.node, self.state)
        self.identity.pin_portal(public_key())
        key = bytes.fromhex(self.identity.public_key())
        await rows(
            lambda: Node.objects.filter(name=self.node).update(public_key=key, epoch=3, features=[STREAMS])
        )
        for lease in leases:
            wanted = DesiredLease(lease.uid, lease.generation, "perception", "bob", 3600, 1, ())
            record = new_record(wanted, 0)
            record.phase = READY
            self.ready[lease.uid, lease.generation] = record

    @asynccontextmanager
    async def dialling(self, *ports: int, epoch: int = 3) -> AsyncIterator[Gateways]:
        entry = PlayedEntry(self.state, lambda record: self.state / "n" / "notice.json", lambda: 0)
        streams = Gateways(
            address_of("ws://127.0.0.1:1"), self.identity, lambda: LeaseStreams(entry, self.ready.get)
        )
        told = tuple(f":{port}" for port in ports)
        streams.welcomed(Welcome(self.node, epoch, 5, 1, gateways=told))
        task = asyncio.create_task(streams.run())
        try:
            yield streams
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(question: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := question()):
            await asyncio.sleep(0.01)
    return found


async def linked(count: int = 1) -> None:
    await until(lambda: len(links) == count)


async def session_of(world: World, name: str) -> str:
    """Return the key of a browser session of somebody who is signed in."""
    from django.test import Client

    def sign_in() -> str:
        client = Client()
        client.force_login(world.user(name))
        return str(client.session.session_key)

    key = await rows(sign_in)
    assert await rows(lambda: BrowserSession.objects.filter(session_key=key).exists())
    return str(key)


async def ticket(world: World, lease: Lease, *, who: str = "bob", **more: Any) -> str:
    session = more.pop("session_key", None) or await session_of(world, who)
    made = {"session_key": session, "now": more.pop("now", world.now), **more}
    return str(await rows(lambda: make_ticket(lease, world.user(who), **made)))


class Person:
    """A person's end of a terminal."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.shown = b""
        self.words: list[dict[str, Any]] = []

    async def hear(self) -> None:
        message = await self.socket.recv()
        if isinstance(message, bytes):
            self.shown += message
            await self.socket.send(json.dumps({"op": "ack", "bytes": len(message)}))
        else:
            self.words.append(json.loads(message))

    async def word(self, op: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := next((word for word in self.words if word["op"] == op), None)):
                await self.hear()
        return found

    async def ask(self, command: str) -> str:
        before = len(self.shown)
        await self.socket.send(f"printf '\\074%s\\076\\n' \"$({command})\"\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            while not ANSWER.search(self.shown, before):
                await self.hear()
        return ANSWER.findall(self.shown)[-1].decode()

    async def ended(self) -> tuple[str, int]:
        """Return why the terminal ended, and the code of the close."""
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.hear()
        why = next((word["code"] for word in self.words if word["op"] == "end"), "")
        return why, self.socket.close_code or 0


@asynccontextmanager
async def visiting(
    port: int, secret: str, *, origin: str | None = None, terminal: str = "", **more: Any
) -> AsyncIterator[Person]:
    async with connect(
        f"ws://127.0.0.1:{port}/gateway/streams/v1/terminal",
        compression=None,
        origin=origin,
        proxy=None,  # type: ignore[arg-type]
    ) as socket:
        first = {"ticket": secret, "rows": 40, "columns": 120, "terminal": terminal, **more}
        await socket.send(json.dumps(first))
        yield Person(socket)
