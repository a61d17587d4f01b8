"""Live news inside one installation: one Redis publish/subscribe channel per kind.

Publishers are synchronous (worker, web threads); each web process has one ``Hub`` that listens
and hands frames to its local sockets. Nothing of value travels only here: whoever reconnects
reads the rows again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from django.db import transaction
from redis.exceptions import RedisError

log = logging.getLogger(__name__)
EVENTS = "berth:events"  # state changes: {"team", "lease", "request", "event", "state", "at", "user"}
FRAMES = "berth:frames"  # one telemetry frame per node and second
NODES = "berth:nodes"  # node names whose desired state rose
Listener = Callable[[str, Any], None]


@functools.cache
def redis_client() -> redis.Redis:
    """Return this process's Redis client: short timeouts, so that a dead Redis never holds work."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1, decode_responses=True
    )


def publish(channel: str, messages: Iterable[Any]) -> None:
    """Send messages now; a Redis that is away costs a log line and nothing else."""
    payload = json.dumps(list(messages), separators=(",", ":"), default=str)
    try:
        redis_client().publish(channel, payload)
    except RedisError as error:
        log.warning("live news on %s not sent: %s", channel, error)


def publish_on_commit(channel: str, messages: Iterable[Any]) -> None:
    """Send messages once the transaction is through."""
    batch = list(messages)
    if batch:
        transaction.on_commit(lambda: publish(channel, batch))


class Hub:
    """One subscription per process and the local listeners behind it."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {EVENTS: set(), FRAMES: set(), NODES: set()}
        self._task: asyncio.Task[None] | None = None

    def listen(self, channel: str, listener: Listener) -> None:
        """Call ``listener(channel, message)`` in the event loop for each message from now on."""
        self._listeners[channel].add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, channel: str, listener: Listener) -> None:
        """Stop calling ``listener``. Safe to repeat."""
        self._listeners[channel].discard(listener)

    async def _run(self) -> None:
        pause = 0.2
        while True:
            try:
                await self._pump()
                pause = 0.2
            except (RedisError, OSError) as error:
                log.warning("live news interrupted (%s); trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)

    async def _pump(self) -> None:
        # Keep the client: redis-py closes the pool of a client that is garbage collected.
        client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL, decode_responses=True, health_check_interval=15
        )
        try:
            pubsub = client.pubsub(ignore_subscribe_messages=True)
            await pubsub.subscribe(*self._listeners)
            async for message in pubsub.listen():
                self._deliver(message["channel"], json.loads(message["data"]))
        finally:
            await client.aclose()

    def _deliver(self, channel: str, messages: list[Any]) -> None:
        for listener in list(self._listeners.get(channel, ())):
            for message in messages:
                try:
                    listener(channel, message)
                except Exception:
                    log.exception("a listener of %s failed", channel)


_hubs: dict[int, Hub] = {}


def hub() -> Hub:
    """Return the hub of the running event loop."""
    loop = id(asyncio.get_running_loop())
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
