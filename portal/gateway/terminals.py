"""The sockets of terminals: a browser's page or ``berth terminal`` at one end, a stream to a node at the other.

docs/terminal.md describes what is said. The first message is a ticket; after it bytes go both ways as binary
messages, words as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter, deque
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.db import DatabaseError
from django.http.request import validate_host

from nodeagent.protocol.codec import ProtocolError, read_object
from nodeagent.protocol.streams import Event, Kind
from nodeagent.protocol.terminals import (
    AWAY,
    EXIT,
    HANG_UP,
    PTY,
    RESIZE,
    OpenTerminal,
    TerminalOpened,
    TerminalWord,
    body_of,
)
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access
from portal.gateway.access import LeaseSeat, SeatRefusal
from portal.gateway.admission import MOST_TEXT, NOT_ALLOWED, admit, close_code, refuse
from portal.gateway.database import in_database
from portal.gateway.nodes import AsgiMessage, NodeLink, Receive, Send, links
from portal.gateway.screens import Screen
from portal.gateway.tickets import TakenTicket
from portal.telemetry.consumers import MessageBucket
from portal.telemetry.viewers import headers_of

log = logging.getLogger(__name__)

# A screen draws later than its socket receives: the page says what it has drawn. As much again lies ahead of it here;
# with twice as much on the way a hundred screens that nobody draws cost a gateway 42 MB instead of 35.
MOST_IN_FLIGHT: Final = 256 * 1024
MOST_AT_ONCE: Final = 128 * 1024
MOST_PER_LEASE: Final = 256
WORDS_PER_S: Final = 1000
LAST_WORDS_S: Final = 10.0


class BrowserTerminal:
    """One person's socket and its stream."""

    def __init__(self, seat: LeaseSeat, rows: int, columns: int) -> None:
        self.seat = seat
        self.screen = Screen((seat.lease_id, seat.generation), rows, columns)
        self.link: NodeLink | None = None
        self.stream = 0
        self.shown = self.typed = 0
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._queue: deque[bytes] = deque()
        self._words: deque[dict[str, Any]] = deque()
        self._in_flight = 0
        self._stir = asyncio.Event()
        self._room = asyncio.Event()
        self._drawn_up = asyncio.Event()
        self._gone = asyncio.Event()
        self._end = ""

    # What the node says

    def on_event(self, event: Event) -> None:
        """Take what the node said; never waits."""
        if event.kind is Kind.DATA:
            self._queue.append(event.data)
            self.screen.drew(event.data)
        elif event.kind is Kind.OPENED:
            self.answer.set_result(event.body)
            self.screen.open()
        elif event.kind is Kind.WINDOW:
            self._room.set()
        elif event.kind is Kind.CTL:
            self._hear(event.body)
        elif event.kind is Kind.RESET:
            self._stream_over(
                str(event.body.get("code", ""))[:60] or "over", str(event.body.get("detail", ""))[:300]
            )
        self._stir.set()

    def on_lost(self) -> None:
        """The node's socket is gone; the shell may live on and be found again."""
        self._stream_over("node_away", "")

    def _hear(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(ProtocolError):
            word = read_object(TerminalWord, body)
            if word.op == EXIT:
                self._words.append({"op": "exit", "status": word.status})

    def _stream_over(self, code: str, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_result({})
        self._words.append({"op": "end", "code": code, "detail": detail})
        self._end = self._end or code
        self._room.set()
        self._stir.set()

    # What the portal says

    def end(self, code: str) -> None:
        """End it now, whatever still waits to be shown. Safe to repeat."""
        self._end = self._end or code
        self._queue.clear()
        self._words.clear()
        self._words.append({"op": "end", "code": code, "detail": ""})
        if self.link is not None and self.stream:
            self.link.reset(self.stream, AWAY if code in ("restart", "unavailable") else code)
        self._room.set()
        self._stir.set()
        self._gone.set()

    # The socket

    async def serve(self, wish: OpenTerminal, link: NodeLink, receive: Receive, send: Send) -> str:
        """Carry bytes until either side ends; returns the code of the end."""
        self.link = link
        self.stream = link.open(self, body_of(wish))
        if not self.stream:
            self._stream_over("node_away", "")
        loop = asyncio.get_running_loop()
        reader = loop.create_task(self._read(receive))
        writer = loop.create_task(self._write(send))
        gone = loop.create_task(self._gone.wait())
        try:
            await asyncio.wait((reader, writer, gone), return_when=asyncio.FIRST_COMPLETED)
            if self._end and not self._gone.is_set() and not reader.done():
                await asyncio.wait(
                    (reader, writer), timeout=LAST_WORDS_S, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            for task in (reader, writer, gone):
                task.cancel()
            await asyncio.gather(reader, writer, gone, return_exceptions=True)
            link.reset(self.stream, AWAY)
            self.screen.leave()
        code = self._end or "left"
        if code != "left":
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                async with asyncio.timeout(2):
                    for word in self._words:
                        await send({"type": "websocket.send", "text": json.dumps(word)})
                    await send({"type": "websocket.close", "code": close_code(code)})
        return code

    async def _write(self, send: Send) -> None:
        answer = await self.answer
        if answer:
            opened = read_object(TerminalOpened, answer)
            said = {"op": "opened", "terminal": opened.terminal, "is_former": opened.is_former}
            await send({"type": "websocket.send", "text": json.dumps(said)})
        while True:
            while self._queue and self._in_flight < MOST_IN_FLIGHT:
                data = self._taken()
                await send({"type": "websocket.send", "bytes": data})
                self._in_flight += len(data)
                self.shown += len(data)
                if self.link is not None:
                    self.link.consumed(self.stream, len(data))
            if self._end and not self._queue:
                return
            self._stir.clear()
            if not self._queue or self._in_flight >= MOST_IN_FLIGHT:
                await self._stir.wait()

    def _taken(self) -> bytes:
        pieces, size = [self._queue.popleft()], 0
        size = len(pieces[0])
        while self._queue and size + len(self._queue[0]) <= MOST_AT_ONCE:
            pieces.append(self._queue.popleft())
            size += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read(self, receive: Receive) -> None:
        pace, loop = MessageBucket(WORDS_PER_S), asyncio.get_running_loop()
        while (message := await receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            if data:
                await self._type(data)
            elif not pace.allows(loop.time()) or not self._obey(message.get("text") or ""):
                self._end = self._end or "bad_message"
                self._words.append({"op": "end", "code": self._end, "detail": ""})
                return

    async def _type(self, data: bytes) -> None:
        await asyncio.shield(self.answer)
        self.screen.used()
        rest = memoryview(data)
        while rest and not self._end and self.link is not None:
            self._room.clear()
            taken = self.link.send(self.stream, rest)
            self.typed += taken
            rest = rest[taken:]
            if rest:
                await self._room.wait()

    def _obey(self, text: str) -> bool:
        """Do what one word asks; False for what makes no sense."""
        try:
            word = json.loads(text) if len(text) <= MOST_TEXT else None
        except (ValueError, RecursionError):
            word = None
        if not isinstance(word, dict) or self.link is None:
            return False
        if word.get("op") == "ack":
            count = word.get("bytes")
            if type(count) is not int or not 0 <= count <= self._in_flight:
                return False
            self._in_flight -= count
            self._stir.set()
            return True
        try:
            said = read_object(TerminalWord, word)
        except ProtocolError:
            return False
        if said.op not in (RESIZE, HANG_UP):
            return False
        if said.op == RESIZE:
            self.screen.resize(said.rows, said.columns)
        if self.answer.done():
            self.link.say(self.stream, body_of(said))
        return True


terminals: set[BrowserTerminal] = set()


async def terminal_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one terminal from ticket to close."""
    await receive()
    headers = headers_of(scope["headers"])
    if not is_known_origin(headers.get("origin")):
        await send({"type": "websocket.close", "code": NOT_ALLOWED})
        return
    origin = headers.get("origin", "")
    found = await admit(scope, receive, send, _wish_in, lambda ticket, now: _seat_by(ticket, origin, now))
    if found is None:
        return
    seat, said = found
    await _serve(seat, OpenTerminal(PTY, seat.uid, seat.generation, **said), receive, send)


async def _serve(seat: LeaseSeat, wish: OpenTerminal, receive: Receive, send: Send) -> None:
    link = links.get(seat.node_id)
    if link is None:
        await refuse(send, "node_away")
        return
    if Counter(one.seat.lease_id for one in terminals)[seat.lease_id] >= MOST_PER_LEASE:
        await refuse(send, "too_many_terminals")
        return
    terminal = BrowserTerminal(seat, wish.rows, wish.columns)
    terminals.add(terminal)
    began = asyncio.get_running_loop().time()
    code = "unavailable"
    try:
        await in_database(lambda: access.note(seat, "terminal.opened", now=db_now()))
        code = await terminal.serve(wish, link, receive, send)
    except (DatabaseError, Unavailable) as no:
        log.warning("a terminal could not be noted: %s", no)
        await refuse(send, "unavailable")
        return
    finally:
        terminals.discard(terminal)
    seconds = int(asyncio.get_running_loop().time() - began)
    facts = {"seconds": seconds, "shown_bytes": terminal.shown, "typed_bytes": terminal.typed, "why": code}
    try:
        await in_database(lambda: access.note(seat, "terminal.closed", now=db_now(), **facts))
    except (DatabaseError, Unavailable) as no:
        log.error("the end of a terminal in lease %s could not be noted: %s", seat.uid, no)


def _wish_in(said: dict[str, Any]) -> dict[str, Any] | None:
    """Return the window's size and the terminal that is asked for, None for anything else."""
    if set(said) & {"kind", "lease", "generation"}:
        return None
    try:
        wish = read_object(OpenTerminal, {"kind": PTY, "lease": "lse-0", "generation": 1, **said})
    except ProtocolError:
        return None
    return {"rows": wish.rows, "columns": wish.columns, "terminal": wish.terminal}


def _seat_by(ticket: TakenTicket, origin: str, now: datetime) -> LeaseSeat | SeatRefusal:
    if ticket.app or ticket.origin != origin:
        return SeatRefusal("bad_ticket")
    return access.seat_of(ticket, now=now)


def is_known_origin(origin: str | None) -> bool:
    """Say whether a page of ours may be asking; programs send no Origin. The ticket then names the very page."""
    if origin is None:
        return True
    try:
        parts = urlsplit(origin.lower())
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    bracketed = f"[{host}]" if ":" in host else host
    return origin in settings.CSRF_TRUSTED_ORIGINS or validate_host(bracketed, settings.ALLOWED_HOSTS)
