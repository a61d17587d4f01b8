"""The socket that browsers and API clients open: ``/ws/live/``. docs/live.md describes what is said on it.

Plain ASGI: one task reads, one writes from a bounded mailbox, and whoever loses their rights is
closed without waiting for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from portal.telemetry import payloads, viewers
from portal.telemetry.database import in_database
from portal.telemetry.hub import LATER, NOT_ALLOWED, SIGN_IN, HubSocket, switchboard
from portal.telemetry.periodic import beat
from portal.telemetry.viewers import Viewer

log = logging.getLogger(__name__)
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_TEXT_BYTES = 64 * 1024
MESSAGES_PER_S = 20
NOT_TEXT, TOO_BIG, SLOW_DOWN, UNKNOWN_PATH, GONE = 1003, 1009, 4429, 4404, 1000
CLOSE_WITHIN_S = 2.0
MOST_TOPICS_NAMED = 256


class MessageBucket:
    """A bucket of messages that fills at a fixed rate."""

    def __init__(self, per_s: int) -> None:
        self._per_s, self._left, self._at = per_s, float(per_s), 0.0

    def allows(self, now: float) -> bool:
        """Count one message at ``now`` (seconds of any steady clock); False when there were too many."""
        self._left = min(float(self._per_s), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def live_socket(scope: Message, receive: Receive, send: Send) -> None:
    """Serve one browser socket from handshake to close."""
    await receive()
    headers = viewers.headers_of(scope["headers"])
    if not viewers.is_allowed_origin(headers):
        await send({"type": "websocket.close", "code": NOT_ALLOWED})
        return
    try:
        visitor = await in_database(lambda: viewers.admit(headers, now=timezone.now()))
        refusal = 0 if visitor is not None and visitor.held else NOT_ALLOWED
        if visitor is None:
            peer = (scope.get("client") or ("",))[0]
            wait_s = await in_database(lambda: viewers.refused_for(headers, peer, now=timezone.now()))
            refusal = SLOW_DOWN if wait_s else SIGN_IN
    except DatabaseError as error:
        log.warning("a live socket could not be admitted: %s", error)
        visitor, refusal = None, LATER
    # A refusal before the handshake reaches the page only as 1006: accept first, so that it learns why.
    await send({"type": "websocket.accept"})
    if visitor is None or refusal:
        await send({"type": "websocket.close", "code": refusal})
        return
    await _serve(visitor, receive, send)


async def unknown_socket(_scope: Message, receive: Receive, send: Send) -> None:
    """Close a socket that was opened at an address where there is none."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": UNKNOWN_PATH})


async def _serve(visitor: Viewer, receive: Receive, send: Send) -> None:
    beat().start()
    board = switchboard()
    seat = board.join(visitor)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_read(seat, receive)), loop.create_task(_write(seat, send))]
    try:
        await seat.closing
    finally:
        board.leave(seat)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if seat.closing.result() != GONE:
        # A reader that takes nothing would hold the close as well.
        with contextlib.suppress(TimeoutError, OSError, RuntimeError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await send({"type": "websocket.close", "code": seat.closing.result()})


async def _write(seat: HubSocket, send: Send) -> None:
    try:
        while (text := await seat.mailbox.take()) is not None:
            await send({"type": "websocket.send", "text": text})
        seat.close(LATER)
    except OSError:
        seat.close(GONE)
    except Exception:
        log.exception("a live socket could not be written")
        seat.close(GONE)


async def _read(seat: HubSocket, receive: Receive) -> None:
    pace, loop = MessageBucket(MESSAGES_PER_S), asyncio.get_running_loop()
    try:
        while (message := await receive())["type"] == "websocket.receive":
            code = _size_refusal(message) or (0 if pace.allows(loop.time()) else SLOW_DOWN)
            if code:
                seat.close(code)
                return
            await _handle(seat, message["text"])
        seat.close(GONE)
    except Exception:
        log.exception("a message on a live socket failed")
        seat.close(1011)


def _size_refusal(message: Message) -> int:
    text = message.get("text")
    if text is None:
        return NOT_TEXT
    is_too_big = len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES
    return TOO_BIG if is_too_big else 0


async def _handle(seat: HubSocket, text: str) -> None:
    """Do what one message asks, or answer why not; it never ends the socket."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    op = message.get("op") if isinstance(message, dict) else None
    if op == "ping":
        seat.mailbox.put(payloads.PONG)
        return
    topics = _topics(message) if op in ("subscribe", "unsubscribe") else None
    if topics is None:
        seat.refuse("bad_message")
    elif op == "subscribe":
        await switchboard().subscribe(seat, topics, now=timezone.now())
    else:
        switchboard().unsubscribe(seat, topics)


def _topics(message: Message) -> list[str] | None:
    topics = message.get("topics")
    if not isinstance(topics, list) or len(topics) > MOST_TOPICS_NAMED:
        return None
    return topics if all(isinstance(topic, str) for topic in topics) else None
