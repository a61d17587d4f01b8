"""The sockets that carry streams: one to every gateway that the portal named, dialled for ever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI, WebSocketException

from nodeagent.link.address import Address, AddressError, gateway_of
from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.handshake import expect, fresh_nonce, require_portal
from nodeagent.link.identity import Identity, StateError
from nodeagent.protocol.codec import ProtocolError, encode
from nodeagent.protocol.messages import LARGE_PIECES, Challenge, StreamHello, Welcome
from nodeagent.protocol.streams import LARGE_PIECE, MOST_PIECE, StreamConnection, StreamProtocolError
from nodeagent.streams.service import LeaseStreams

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 0.2
MOST_DELAY_S: Final = 5.0
MOST_FRAME: Final = 1024 * 1024
CLOSE_BAD_FRAME: Final = 4400
LOST = (OSError, TimeoutError, EOFError, ConnectionClosed, InvalidHandshake, WebSocketException)


class Gateways:
    """Keeps a socket to every gateway, as the last welcome named them."""

    def __init__(
        self,
        portal: Address,
        identity: Identity,
        services: Callable[[], LeaseStreams],
        *,
        allow_plain: bool = False,
        dice: random.Random | None = None,
    ) -> None:
        """``services`` makes what streams end in; called once, in the loop that they live in."""
        self._portal = portal
        self._identity = identity
        self._make_services = services
        self._allow_plain = allow_plain
        self._dice = dice or random.Random()  # noqa: S311 - spreads reconnects, guards nothing
        self._welcome: Welcome | None = None
        self._news = asyncio.Event()

    def welcomed(self, welcome: Welcome) -> None:
        """Take what the portal said last: which gateways there are, and the epoch that is proven to them."""
        self._welcome = welcome
        self._news.set()

    async def run(self) -> None:
        """Dial until cancelled; shells end with this."""
        loop = asyncio.get_running_loop()
        services = self._make_services()
        keeper = loop.create_task(services.run())
        dialling: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                welcome = self._welcome
                wanted = {(told, welcome.epoch) for told in welcome.gateways} if welcome else set()
                for key in dialling.keys() - wanted:
                    dialling.pop(key).cancel()
                for key in wanted - dialling.keys():
                    dialling[key] = loop.create_task(self._keep(*key, services))
        finally:
            tasks = [keeper, *dialling.values()]
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)  # shells say goodbye while there are sockets
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, told: str, epoch: int, services: LeaseStreams) -> None:
        try:
            address = gateway_of(self._portal, told, allow_plain=self._allow_plain)
        except AddressError as no:
            log.error("nothing by gateway %s: %s", told, no)
            return
        failures = 0
        while True:
            try:
                async with connect(
                    address.url,
                    max_size=MOST_FRAME,
                    open_timeout=10,
                    ping_interval=20,
                    ping_timeout=20,
                    close_timeout=1,
                    compression=None,
                    proxy=None if address.is_local else True,
                ) as socket:
                    welcome = await greet(socket, self._identity, epoch)
                    failures = 0
                    log.info("streams by gateway %s", address.url)
                    takes_large = LARGE_PIECES in welcome.features
                    await GatewayLink(socket, services, LARGE_PIECE if takes_large else MOST_PIECE).run()
            except (PortalRefusedError, StateError) as no:
                failures += 1
                log.warning("gateway %s refused this node: %s", address.url, no)
            except InvalidURI as no:
                log.error("nothing by gateway %s: %s", told, no)
                return
            except LOST as no:
                failures += 1
                if failures in (1, 5) or failures % 60 == 0:
                    log.warning("no streams by gateway %s (%s); trying again", address.url, no or type(no))
            longest = min(MOST_DELAY_S, FIRST_DELAY_S * (1 << min(failures, 10)))
            await asyncio.sleep(longest * self._dice.uniform(0.5, 1.0))


async def greet(socket: Any, identity: Identity, epoch: int) -> Welcome:
    """Prove this node to a gateway, and let it prove itself; raises PortalRefusedError."""
    challenge = await expect(socket, Challenge)
    nonce = fresh_nonce()
    hello = StreamHello(
        node=identity.node,
        epoch=epoch,
        signature=identity.sign_streams(challenge.nonce, agent_nonce=nonce, epoch=epoch),
        nonce=nonce,
        portal_key=identity.portal_key,
    )
    await socket.send(encode(hello))
    welcome = await expect(socket, Welcome)
    require_portal(welcome, hello, challenge.nonce, identity.public_key(), identity)
    if welcome.epoch != epoch:
        raise PortalRefusedError("other_epoch", f"epoch {welcome.epoch} instead of {epoch}")
    return welcome


class GatewayLink:
    """One socket of streams: what arrives goes to the services at once, what they send is written by one task."""

    def __init__(self, socket: ClientConnection, services: LeaseStreams, most_piece: int) -> None:
        """``most_piece`` is what the gateway takes in a frame."""
        self._socket = socket
        self._services = services
        self._connection = StreamConnection(is_portal=False, most_piece=most_piece)
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve streams until the socket ends, whichever side ends it."""
        writer = asyncio.get_running_loop().create_task(self._write())
        try:
            async for frame in self._socket:
                self._take(frame)
        except (StreamProtocolError, ProtocolError) as no:
            log.warning("a gateway broke the rules of streams: %s", no)
            await self._socket.close(CLOSE_BAD_FRAME)
        finally:
            self._services.lost(self)
            if self._wake.is_set():  # what was said last, such as that a shell ended, is on its way
                with contextlib.suppress(*LOST):
                    async with asyncio.timeout(1):
                        await self._flush()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, str):
            raise StreamProtocolError("bad_kind", "streams are binary")
        event = self._connection.receive(frame)
        if event is not None:
            self._services.take(self, event)
        self._stir()

    async def _write(self) -> None:
        with contextlib.suppress(*LOST):
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._flush()

    async def _flush(self) -> None:
        for frame in self._connection.take_frames():
            await self._socket.send(frame)

    def _stir(self) -> None:
        if self._connection.is_waiting:
            self._wake.set()

    # What services call

    def credit(self, stream: int) -> int:
        """Return how many bytes may be sent now."""
        return self._connection.credit(stream)

    def send(self, stream: int, data: bytes | memoryview) -> int:
        """Send as much as the credit allows; returns how much."""
        taken = self._connection.send(stream, data)
        self._stir()
        return taken

    def accept(self, stream: int, answer: dict[str, Any]) -> None:
        """Answer a stream that was asked for."""
        self._connection.accept(stream, answer)
        self._stir()

    def say(self, stream: int, message: dict[str, Any]) -> None:
        """Send a word beside the bytes."""
        self._connection.say(stream, message)
        self._stir()

    def end(self, stream: int) -> None:
        """Send no more bytes; the other direction goes on."""
        self._connection.end(stream)
        self._stir()

    def reset(self, stream: int, code: str, detail: str = "") -> None:
        """End a stream."""
        self._connection.reset(stream, code, detail)
        self._stir()

    def consumed(self, stream: int, count: int) -> None:
        """Say that received bytes were drawn."""
        self._connection.consumed(stream, count)
        self._stir()
