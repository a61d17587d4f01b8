"""Live news inside one installation: one Redis publish/subscribe channel per kind.

Publishers are synchronous (worker, web threads) or, in an event loop, the hub itself; each web
process has one ``Hub`` that listens and hands messages to its local sockets. Nothing of value
travels only here: whoever reconnects reads the rows again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from django.db import connection, transaction
from redis.exceptions import RedisError

log = logging.getLogger(__name__)
EVENTS = "berth:events"  # state changes: {"team", "lease", "request", "event", "state", "at", "user"}
FRAMES = "berth:frames"  # one telemetry frame per node and second
NODES = "berth:nodes"  # node names whose desired state rose
LOGS = "berth:logs"  # output that was stored: {"job", "attempt", "size", "at"}
QUIET_S = 15.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
Listener = Callable[[str, Any], None]
Watcher = Callable[[bool], None]


@functools.cache
def redis_client() -> redis.Redis:
    """Return this process's Redis client: short timeouts, so that a dead Redis never holds work."""
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1, decode_responses=True
    )


@functools.cache
def _database_number() -> int:
    return int(redis_client().connection_pool.connection_kwargs.get("db") or 0)


def wire_name(channel: str) -> str:
    """Return the channel's name in Redis: channels do not belong to a database, so its number is added."""
    return f"{channel}:{_database_number()}"


def publish(channel: str, messages: Iterable[Any]) -> None:
    """Send messages now; a Redis that is away costs a log line and nothing else."""
    payload = json.dumps(list(messages), separators=(",", ":"), default=str)
    try:
        redis_client().publish(wire_name(channel), payload)
    except RedisError as error:
        log.warning("live news on %s not sent: %s", channel, error)


def publish_on_commit(channel: str, messages: Iterable[Any]) -> None:
    """Send messages once the transaction is through; those of one channel that follow each other go as one."""
    batch = list(messages)
    if not batch:
        return
    waiting = connection.run_on_commit[-1] if connection.run_on_commit else None
    if waiting is not None and isinstance(waiting[1], _News) and waiting[0] == set(connection.savepoint_ids):
        waiting[1].add(channel, batch)
    else:
        transaction.on_commit(_News(channel, batch))


class _News:
    """What one transaction has to tell, by channel. A rolled back savepoint takes its own news with it."""

    def __init__(self, channel: str, batch: list[Any]) -> None:
        self._batches = {channel: batch}

    def add(self, channel: str, batch: list[Any]) -> None:
        """Tell more with it."""
        self._batches.setdefault(channel, []).extend(batch)

    def __call__(self) -> None:
        """Send everything."""
        for channel, batch in self._batches.items():
            publish(channel, batch)


class Hub:
    """One subscription per event loop and the local listeners behind it."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {
            channel: set() for channel in (EVENTS, FRAMES, NODES, LOGS)
        }
        self._channels = {wire_name(channel): channel for channel in self._listeners}
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        # Kept here: redis-py closes the pool of a client that is garbage collected.
        self.client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL, decode_responses=True, socket_connect_timeout=2, health_check_interval=15
        )

    @property
    def is_open(self) -> bool:
        """Say whether news arrives now."""
        return self._open.is_set()

    async def opened(self) -> None:
        """Return once news arrives; starts listening when nobody did."""
        self._start()
        await self._open.wait()

    def listen(self, channel: str, listener: Listener) -> None:
        """Call ``listener(channel, message)`` in the event loop for each message from now on."""
        self._listeners[channel].add(listener)
        self._start()

    def leave(self, channel: str, listener: Listener) -> None:
        """Stop calling ``listener``. Safe to repeat."""
        self._listeners[channel].discard(listener)

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(True)`` when news begins to arrive and ``watcher(False)`` when it stops."""
        self._watchers.add(watcher)

    async def close(self) -> None:
        """Stop listening and hand the connections back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._open.clear()
        await self.client.aclose()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                await self._pump()
            except (RedisError, OSError, TimeoutError) as error:
                pause = FIRST_PAUSE_S if self.is_open else min(LONGEST_PAUSE_S, pause * 2)
                log.warning("live news interrupted (%s); trying again in %.1f s", error, pause)
                self._tell(is_open=False)
                await asyncio.sleep(pause)

    async def _pump(self) -> None:
        """Hand messages on until the connection fails; silence is answered with a ping."""
        async with self.client.pubsub() as pubsub:
            await pubsub.subscribe(*self._channels)
            confirmed, asked = 0, False
            while True:
                message = await pubsub.get_message(timeout=QUIET_S)
                if message is None:
                    if asked:
                        raise TimeoutError("Redis does not answer")
                    await pubsub.ping()
                    asked = True
                    continue
                asked = False
                if message["type"] == "message":
                    self._deliver(self._channels[message["channel"]], json.loads(message["data"]))
                elif message["type"] == "subscribe":
                    confirmed += 1
                    if confirmed == len(self._channels):
                        self._tell(is_open=True)

    def _tell(self, *, is_open: bool) -> None:
        if is_open == self.is_open:
            return
        if is_open:
            self._open.set()
        else:
            self._open.clear()
        for watcher in list(self._watchers):
            watcher(is_open)

    def _deliver(self, channel: str, messages: list[Any]) -> None:
        for listener in list(self._listeners.get(channel, ())):
            for message in messages:
                try:
                    listener(channel, message)
                except Exception:
                    log.exception("a listener of %s failed", channel)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """Return the hub of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]
