"""The sockets of those who watch a lease's terminals by their holder's leave. They are shown, and say nothing.

docs/terminal.md describes what is said. Anything but an acknowledgement from a watcher ends their socket: no byte of
theirs has a way to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from datetime import datetime
from typing import Any, Final

from django.db import DatabaseError

from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access, screens
from portal.gateway.access import LeaseSeat, SeatRefusal
from portal.gateway.admission import MOST_TEXT, NOT_ALLOWED, admit, refuse
from portal.gateway.database import in_database
from portal.gateway.nodes import AsgiMessage, Receive, Send
from portal.gateway.screens import Screen
from portal.gateway.terminals import MOST_IN_FLIGHT, is_known_origin
from portal.gateway.tickets import WATCH_APP, TakenTicket
from portal.telemetry.viewers import headers_of

log = logging.getLogger(__name__)

MOST_BEHIND: Final = 512 * 1024
# What a word beside the bytes counts for in that.
WORD: Final = 256
MOST_WATCHERS: Final = 32


class TerminalWatcher:
    """One watcher's socket.

    What waits to be shown is bounded: whoever is further behind is let go, and comes back to the last of it.
    """

    def __init__(self, seat: LeaseSeat) -> None:
        self.seat = seat
        self.shown = 0
        self._queue: deque[bytes | dict[str, Any]] = deque()
        self._waiting = self._in_flight = 0
        self._end = ""
        self._stir = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def lease(self) -> tuple[int, int]:
        """Return what is watched: id and generation."""
        return self.seat.lease_id, self.seat.generation

    def show(self, screen: Screen) -> None:
        """Begin anew with another terminal."""
        self._queue.clear()
        self._waiting = 0
        self._put({"op": "opened", "rows": screen.rows, "columns": screen.columns})
        if screen.tail:
            self.feed(screen.tail)
        self._stir.set()

    def feed(self, data: bytes) -> None:
        """Take what the terminal in front shows; never waits."""
        self._put(data)

    def resize(self, rows: int, columns: int) -> None:
        """Take the size of the holder's window. Of sizes that follow each other the last is shown."""
        last = self._queue[-1] if self._queue else b""
        if isinstance(last, dict) and last["op"] == "resize":
            self._waiting -= _weight(self._queue.pop())
        self._put({"op": "resize", "rows": rows, "columns": columns})

    def _put(self, one: bytes | dict[str, Any]) -> None:
        self._queue.append(one)
        self._waiting += _weight(one)
        if self._waiting > MOST_BEHIND:
            self.end("behind")
        self._stir.set()

    def end(self, code: str) -> None:
        """End it now, whatever still waits to be shown. Safe to repeat."""
        self._end = self._end or code
        self._queue.clear()
        self._gone.set()

    async def serve(self, receive: Receive, send: Send) -> str:
        """Show until either side ends; returns the code of the end."""
        loop = asyncio.get_running_loop()
        reader, writer = loop.create_task(self._read(receive)), loop.create_task(self._write(send))
        ended = loop.create_task(self._gone.wait())
        try:
            await asyncio.wait((reader, writer, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, ended):
                task.cancel()
            await asyncio.gather(reader, writer, ended, return_exceptions=True)
        code = self._end or "left"
        if code != "left":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await refuse(send, code)
        return code

    async def _write(self, send: Send) -> None:
        while True:
            while self._queue and self._in_flight < MOST_IN_FLIGHT:
                one = self._queue.popleft()
                self._waiting -= _weight(one)
                if isinstance(one, dict):
                    await send({"type": "websocket.send", "text": json.dumps(one)})
                    continue
                self._in_flight += len(one)
                self.shown += len(one)
                await send({"type": "websocket.send", "bytes": one})
            self._stir.clear()
            if not self._queue or self._in_flight >= MOST_IN_FLIGHT:
                await self._stir.wait()

    async def _read(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            if not self._obey(message.get("text") or ""):
                self.end("bad_message")
                return

    def _obey(self, text: str) -> bool:
        """Count what was drawn; False for anything else, above all for what is typed."""
        try:
            word = json.loads(text) if len(text) <= MOST_TEXT else None
        except (ValueError, RecursionError):
            return False
        count = word.get("bytes") if isinstance(word, dict) and word.get("op") == "ack" else None
        if type(count) is not int or not 0 <= count <= self._in_flight:
            return False
        self._in_flight -= count
        self._stir.set()
        return True


def _weight(one: bytes | dict[str, Any]) -> int:
    return len(one) if isinstance(one, bytes) else WORD


watchers: set[TerminalWatcher] = set()


async def watch_socket(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one watcher from ticket to close."""
    await receive()
    origin = headers_of(scope["headers"]).get("origin")
    if not is_known_origin(origin):
        await send({"type": "websocket.close", "code": NOT_ALLOWED})
        return
    found = await admit(
        scope, receive, send, _wish_in, lambda ticket, now: _seat_by(ticket, origin or "", now)
    )
    if found is None:
        return
    seat, _wish = found
    watcher = TerminalWatcher(seat)
    screen = screens.front(watcher.lease)
    if screen is None or screens.count_viewers(watcher.lease) >= MOST_WATCHERS:
        await refuse(send, "not_shown" if screen is None else "too_many_terminals")
        return
    watchers.add(watcher)
    screens.watch(watcher.lease, watcher)
    watcher.show(screen)
    began, code = asyncio.get_running_loop().time(), "unavailable"
    try:
        # Before the first byte: nobody watches unnoted.
        await in_database(lambda: access.note(seat, "terminal.watch_opened", now=db_now()))
        code = await watcher.serve(receive, send)
    except (DatabaseError, Unavailable) as no:
        log.warning("a watcher could not be noted: %s", no)
        await refuse(send, "unavailable")
        return
    finally:
        screens.unwatch(watcher.lease, watcher)
        watchers.discard(watcher)
    facts = {
        "seconds": int(asyncio.get_running_loop().time() - began), "shown_bytes": watcher.shown, "why": code,
    }  # fmt: skip
    try:
        await in_database(lambda: access.note(seat, "terminal.watch_closed", now=db_now(), **facts))
    except (DatabaseError, Unavailable) as no:
        log.error("the end of watching lease %s could not be noted: %s", seat.uid, no)


def _wish_in(said: dict[str, Any]) -> dict[str, Any] | None:
    """A watcher says nothing beside the ticket."""
    return None if said else {}


def _seat_by(ticket: TakenTicket, origin: str, now: datetime) -> LeaseSeat | SeatRefusal:
    if ticket.app != WATCH_APP or ticket.origin != origin:
        return SeatRefusal("bad_ticket")
    return access.seat_of(ticket, now=now)
