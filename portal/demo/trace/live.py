"""Changes of state from the live socket, one connection per person, opened again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from portal.demo.trace.calls import Origin

log = logging.getLogger(__name__)
AGAIN_AFTER_S = 0.5
Event = dict[str, Any]


class LiveNews:
    """Calls ``on_event`` for every change in the sight of one token, ``on_gap`` when some may be missing."""

    def __init__(
        self, origin: Origin, token: str, on_event: Callable[[Event], None], on_gap: Callable[[], None]
    ) -> None:
        self._url = f"ws://{origin.netloc}/ws/live/"
        self._token = token
        self._on_event, self._on_gap = on_event, on_gap
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def open(self) -> None:
        """Return once news arrives."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        ready = asyncio.get_running_loop().create_task(self._ready.wait())
        await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED, timeout=20)
        ready.cancel()
        if not self._ready.is_set():
            await self.close()
            raise OSError(f"no live news from {self._url}: is the portal up, and the token alive?")

    async def close(self) -> None:
        """Stop listening. Safe to repeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError, WebSocketException):
                await self._listen()
            self._on_gap()
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _listen(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with connect(
            self._url, additional_headers=headers, compression=None, proxy=None, max_size=2**22
        ) as socket:
            await socket.send('{"op":"subscribe","topics":["me"]}')
            await self._take(socket)

    async def _take(self, socket: ClientConnection) -> None:
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "event":
                self._on_event(message)
            elif message["type"] == "snapshot":
                self._ready.set()
            elif message["type"] == "error":
                log.warning("live news: %s", message.get("detail"))
