"""How a person's socket becomes a seat in a lease: the first message is a ticket, good once. For terminals and SSH."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

from django.db import DatabaseError

from portal.agents.handshake import UnprovenSockets
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access
from portal.gateway.access import SeatRefusal
from portal.gateway.database import in_database
from portal.gateway.nodes import AsgiMessage, Receive, Send
from portal.gateway.tickets import TakenTicket, take_ticket

log = logging.getLogger(__name__)
Wish = TypeVar("Wish")
Seat = TypeVar("Seat")

TICKET_WITHIN_S: Final = 10
MOST_TEXT: Final = 4096
# Close codes: over for good, not allowed, sign in (or take a new ticket), try again.
DONE, BAD, SIGN_IN, NOT_ALLOWED, AGAIN = 1000, 4400, 4401, 4403, 4503
_CODES: Final = {
    "bad_ticket": SIGN_IN,
    access.SIGNED_OUT: SIGN_IN,
    access.NOT_ALLOWED: NOT_ALLOWED,
    "bad_message": BAD,
    "node_away": AGAIN,
    "unavailable": AGAIN,
    "restart": AGAIN,
    "not_shown": AGAIN,
    "behind": AGAIN,
}
_waiting = UnprovenSockets()


def close_code(code: str) -> int:
    """Return with which number a socket closes that ends for this reason."""
    return _CODES.get(code, DONE)


async def refuse(send: Send, code: str, detail: str = "") -> None:
    """Say why a socket ends, and end it; somebody who has left is no error."""
    with contextlib.suppress(OSError, RuntimeError):
        said = {"op": "end", "code": code, "detail": detail}
        await send({"type": "websocket.send", "text": json.dumps(said)})
        await send({"type": "websocket.close", "code": close_code(code)})


async def admit(
    scope: AsgiMessage,
    receive: Receive,
    send: Send,
    wish_of: Callable[[dict[str, Any]], Wish | None],
    seat_of: Callable[[TakenTicket, datetime], Seat | SeatRefusal],
) -> tuple[Seat, Wish] | None:
    """Accept a socket and learn who it is for; None where it was turned away, with the reason said to it.

    ``wish_of`` returns what the first message says beside its ticket, None for what makes no sense. ``seat_of`` is
    asked in a database thread what the spent ticket is good for.
    """
    address = str((scope.get("client") or ("",))[0])
    if not _waiting.enter(address):
        await send({"type": "websocket.close", "code": AGAIN})
        return None
    try:
        await send({"type": "websocket.accept"})
        found = await _seated(receive, wish_of, seat_of)
    finally:
        _waiting.leave(address)
    if isinstance(found, SeatRefusal):
        await refuse(send, found.code)
        return None
    return found


async def _seated(
    receive: Receive,
    wish_of: Callable[[dict[str, Any]], Wish | None],
    seat_of: Callable[[TakenTicket, datetime], Seat | SeatRefusal],
) -> tuple[Seat, Wish] | SeatRefusal | None:
    """Take the first message. None: nobody is there any more."""
    try:
        async with asyncio.timeout(TICKET_WITHIN_S):
            message = await receive()
    except TimeoutError:
        return SeatRefusal("bad_ticket")
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text") or ""
    try:
        said: Any = json.loads(text) if len(text) <= MOST_TEXT else None
    except (ValueError, RecursionError):
        said = None
    secret: Any = said.pop("ticket", None) if isinstance(said, dict) else None
    wish = wish_of(said) if isinstance(secret, str) and secret.isascii() else None
    if wish is None:
        return SeatRefusal("bad_message")
    try:
        seat = await in_database(lambda: _redeem(secret, seat_of))
    except (DatabaseError, Unavailable) as no:
        log.warning("a ticket could not be looked up: %s", no)
        return SeatRefusal("unavailable")
    return seat if isinstance(seat, SeatRefusal) else (seat, wish)


def _redeem(
    secret: str, seat_of: Callable[[TakenTicket, datetime], Seat | SeatRefusal]
) -> Seat | SeatRefusal:
    now = db_now()
    ticket = take_ticket(secret, now=now)
    return SeatRefusal("bad_ticket") if ticket is None else seat_of(ticket, now)
