"""What a web process does by the clock for its sockets: ticks, rights, roster, minutes, forgetting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Coroutine
from typing import Any

from django.utils import timezone
from redis.exceptions import RedisError

from portal.common.live import hub
from portal.telemetry import latest
from portal.telemetry.hub import switchboard
from portal.telemetry.ingest import intake
from portal.telemetry.ring import fill, readings

log = logging.getLogger(__name__)
TICK_S = 0.5
REVIEW_S = 4.0  # with the queries themselves, a lost right ends a socket within five seconds
PRUNE_S = 30.0


class Clockwork:
    """The clockwork of one event loop."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._running: dict[str, asyncio.Task[Any]] = {}

    def start(self) -> None:
        """Begin to listen and tick. Safe to repeat."""
        if self._task is None or self._task.done():
            readings.is_fed = True
            switchboard().listen()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the clockwork; sockets are closed by the server."""
        tasks = [task for task in (self._task, *self._running.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        readings.is_fed = False
        await hub().close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._alone("fill", self._fill())
        review_at = prune_at = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            now = timezone.now()
            try:
                switchboard().tick(now=now.timestamp())
                intake().flush(now=now.timestamp())
                if loop.time() >= review_at:
                    review_at = loop.time() + REVIEW_S
                    self._alone("review", switchboard().review(now=now))
                if intake().roster.is_due():
                    self._alone("roster", intake().roster.refresh())
                if loop.time() >= prune_at:
                    prune_at = loop.time() + PRUNE_S
                    readings.prune(now=now.timestamp())
            except Exception:
                log.exception("a tick of the live sockets failed")

    def _alone(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run ``work`` beside the ticks unless the last of its name still runs."""
        before = self._running.get(name)
        if before is not None and not before.done():
            work.close()
            return
        task = self._running[name] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_tell_failure)

    async def _fill(self) -> None:
        """Start with the newest frames that other processes left."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            fill(latest.frames_in(await hub().client.hgetall(latest.LATEST)))


def _tell_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("live sockets: %s", task.exception(), exc_info=task.exception())


_beats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Clockwork] = weakref.WeakKeyDictionary()


def beat() -> Clockwork:
    """Return the clockwork of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _beats:
        _beats[loop] = Clockwork()
    return _beats[loop]
