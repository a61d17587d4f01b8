"""Who has which app open: rights, connections and the state of the app, for as long as somebody uses it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from django.db import DatabaseError

from nodeagent.protocol.codec import ProtocolError, read_object
from nodeagent.protocol.lease_streams import (
    ENDED,
    FAILED,
    LOG_LINES,
    MOST_LOG_BYTES,
    READY,
    STARTING,
    AppWord,
    wire,
)
from nodeagent.protocol.streams import Event, Kind
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access
from portal.gateway.access import LeaseSeat, SeatRefusal
from portal.gateway.app_cookies import AppCookie
from portal.gateway.catalogue import App
from portal.gateway.database import in_database
from portal.gateway.nodes import NodeLink, links
from portal.gateway.tickets import TakenTicket
from portal.gateway.upstream import Upstream

log = logging.getLogger(__name__)

IDLE_FOR_S: Final = 60.0
MOST_REQUESTS: Final = 128
MOST_VISITS: Final = 4096


class TooManyError(Exception):
    """More of them than a lease or a gateway may have."""


class AppVisit:
    """One person at one app, by one sign-in."""

    def __init__(self, seat: LeaseSeat, app: App, link: NodeLink) -> None:
        self.seat = seat
        self.app = app
        self.upstream = Upstream(link, app.socket_wish(seat.uid, seat.generation))
        self.over = ""
        self.requests = self.shown = self.sent = 0
        self.busy = 0
        self.began = self.used_at = asyncio.get_running_loop().time()
        # Bytes of messages that are not whole yet, over all sockets of this visit.
        self.partial = 0
        self.word = AppWord("state", READY if not app.command else STARTING)
        self.lines = b""
        self._link = link
        self._stream = 0
        self._ended = asyncio.Event()

    # The app's state

    def start(self, *, restart: bool) -> None:
        """Have the app started where it does not run; a port's holder starts it themselves."""
        if not self.app.command or self.over:
            return
        if self._stream:
            self._link.reset(self._stream, "asked_anew")
        self.word, self.lines = AppWord("state", STARTING), b""
        wish = self.app.wish(self.seat.uid, self.seat.generation, restart=restart)
        self._stream = self._link.open(self, wire(wish))
        if not self._stream:
            self.end("node_away")

    def look_again(self) -> None:
        """Ask how the app does: it did not answer."""
        if self.word.state == READY:
            self.start(restart=False)

    def on_event(self, event: Event) -> None:
        """Take what the node said of the app; never waits."""
        if event.kind is Kind.DATA:
            self._link.consumed(self._stream, len(event.data))
            self.lines = b"\n".join((self.lines + event.data).splitlines()[-LOG_LINES:])[-MOST_LOG_BYTES:]
        elif event.kind is Kind.CTL:
            with contextlib.suppress(ProtocolError):
                self.word = read_object(AppWord, event.body)
        elif event.kind is Kind.RESET:
            self._stream = 0
            code, detail = (str(event.body.get(key, "")) for key in ("code", "detail"))
            if code in ("lease_over", "not_open_here"):
                self.end("lease_over")
            else:
                self.word = AppWord("state", ENDED if self.word.state == READY else FAILED, detail[:300])

    def on_lost(self) -> None:
        """The node's socket is gone, and every stream with it."""
        self.end("node_away")

    # Its end

    def end(self, code: str) -> None:
        """End it now, with all its streams. Safe to repeat."""
        if self.over:
            return
        self.over = code
        visits.pop(key_of(self.seat, self.app), None)
        self.upstream.end(code)
        if self._stream:
            self._link.reset(self._stream, "left")
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Count one request or socket as long as it lasts; raises TooManyError."""
        mine = [visit for visit in visits.values() if visit.seat.lease_id == self.seat.lease_id]
        if sum(visit.busy for visit in mine) >= MOST_REQUESTS:
            raise TooManyError
        self.busy += 1
        self.requests += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used_at = asyncio.get_running_loop().time()


VisitKey = tuple[tuple[str, int], int, int, str]
visits: dict[VisitKey, AppVisit] = {}
_opening: dict[VisitKey, asyncio.Task[AppVisit | SeatRefusal]] = {}
_noting: set[asyncio.Task[None]] = set()


def key_of(seat: LeaseSeat, app: App) -> VisitKey:
    """Return what a visit is found by."""
    return seat.viewer.key, seat.lease_id, seat.generation, app.name


async def visit_of(cookie: AppCookie, app: App, *, restart: bool = False) -> AppVisit | SeatRefusal:
    """Return the visit of whoever shows this cookie, begun anew where there is none, or why there is none.

    A visit that is there was looked at half a second ago (watch.py). Raises TooManyError, and Unavailable or
    DatabaseError where nobody can tell.
    """
    key = (cookie.session_key, cookie.token_id), cookie.lease_id, cookie.generation, app.name
    found = visits.get(key)
    if found is None:
        task = _opening.get(key)
        if task is None:
            task = _opening[key] = asyncio.get_running_loop().create_task(_begin(cookie, app, restart))
            task.add_done_callback(lambda _task: _opening.pop(key, None))
        begun = await asyncio.shield(task)
        if isinstance(begun, SeatRefusal):
            return begun
        found = begun
    elif restart and found.word.state in (FAILED, ENDED):
        found.start(restart=True)
    found.used_at = asyncio.get_running_loop().time()
    return found


async def _begin(cookie: AppCookie, app: App, restart: bool) -> AppVisit | SeatRefusal:
    ticket = TakenTicket(
        cookie.user_id, cookie.lease_id, cookie.generation, cookie.session_key, cookie.token_id, "", app.name
    )
    seat = await in_database(lambda: access.seat_of(ticket, now=db_now()))
    if isinstance(seat, SeatRefusal):
        return seat
    link = links.get(seat.node_id)
    if link is None:
        return SeatRefusal("node_away")
    if len(visits) >= MOST_VISITS:
        raise TooManyError
    await in_database(lambda: access.note(seat, "app.opened", now=db_now(), app=app.name))
    visit = visits[key_of(seat, app)] = AppVisit(seat, app, link)
    task = asyncio.get_running_loop().create_task(_note_end(visit))
    _noting.add(task)
    task.add_done_callback(_noting.discard)
    visit.start(restart=restart)
    return visit


async def _note_end(visit: AppVisit) -> None:
    """Wait for a visit's end and write it down; never what went through it."""
    await visit.ended()
    seconds = int(asyncio.get_running_loop().time() - visit.began)
    facts: dict[str, Any] = {
        "app": visit.app.name, "seconds": seconds, "requests": visit.requests, "shown_bytes": visit.shown,
        "sent_bytes": visit.sent, "why": visit.over,
    }  # fmt: skip
    try:
        await in_database(lambda: access.note(visit.seat, "app.closed", now=db_now(), **facts))
    except (DatabaseError, Unavailable) as no:
        log.error("the end of an app in lease %s could not be noted: %s", visit.seat.uid, no)


def leave_idle() -> None:
    """End visits that nobody uses any more; the apps run on."""
    now = asyncio.get_running_loop().time()
    for visit in list(visits.values()):
        if not visit.busy and now - visit.used_at > IDLE_FOR_S:
            visit.end("left")


async def close() -> None:
    """End all visits and wait until that is written down: the gateway stops."""
    for visit in list(visits.values()):
        visit.end("restart")
    await asyncio.gather(*_noting, return_exceptions=True)
