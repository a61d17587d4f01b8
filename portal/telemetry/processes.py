"""The newest list of processes of each node: kept in Redis beside the frames, as disposable as they are.

What a node says of a lease counts only where the lease is on that node, which the readers here make sure of.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from nodeagent.protocol.messages import ProcessSample
from portal.common.live import redis_client

log = logging.getLogger(__name__)
NEWEST = "berth:processes"  # hash: node name to its newest list
ORPHANS = "berth:orphans"  # hash: node name to when it was told and how many: lists of nodes need no more
ORPHAN = "orphan"
# Agents send a list every few frames; one older than this says nothing about the present.
FRESH_S = 60


class ProcessNow(NamedTuple):
    """A process that a device of a node listed; memory None is unknown, ``lease`` and ``name`` "" too."""

    pid: int
    device: str
    state: str
    lease: str
    name: str
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class ProcessList:
    """What one node listed, and when."""

    at: datetime
    rows: tuple[ProcessNow, ...]

    @property
    def orphans(self) -> int:
        """Return how many processes belong to no lease that may use their slice."""
        return _count(self.rows)


class StoredProcesses(NamedTuple):
    """A list as it is stored: its whole text, and that of its number of orphans."""

    rows: str
    orphans: str


def pack(processes: Iterable[ProcessSample], *, at: float) -> StoredProcesses:
    """Return a list as the texts that are stored."""
    rows = [ProcessNow(p.pid, p.device, p.state, p.lease, p.name, p.memory_mib) for p in processes]
    return StoredProcesses(
        json.dumps([at, rows], separators=(",", ":"), allow_nan=False), json.dumps([at, _count(rows)])
    )


def _count(rows: Iterable[ProcessNow]) -> int:
    """Return how many processes are orphans; one that works on several devices is one."""
    return len({row.pid for row in rows if row.state == ORPHAN})


def processes_of(node: str, *, now: datetime) -> ProcessList | None:
    """Return the newest list of a node; None is unknown: its agent tells none, or not lately."""
    try:
        text = redis_client().hget(NEWEST, node)
    except RedisError as error:
        log.warning("processes of %s not read: %s", node, error)
        return None
    found = _stored(text, now)
    if found is None:
        return None
    try:
        return ProcessList(found[0], tuple(ProcessNow(*row) for row in found[1]))
    except TypeError as error:
        log.warning("the stored processes of %s cannot be read: %s", node, error)
        return None


def processes_of_lease(node: str, lease: str, *, now: datetime) -> tuple[ProcessNow, ...] | None:
    """Return the processes that a node lists for one lease on it; None is unknown."""
    found = processes_of(node, now=now)
    return None if found is None else tuple(row for row in found.rows if row.lease == lease)


def orphans_by_node(names: Collection[str], *, now: datetime) -> dict[str, int | None]:
    """Return how many orphans each of these nodes lists; None is unknown. One call, whatever their number."""
    wanted = list(names)
    if not wanted:
        return {}
    try:
        texts: list[Any] = redis_client().hmget(ORPHANS, wanted)
    except RedisError as error:
        log.warning("orphan processes not read: %s", error)
        texts = [None] * len(wanted)
    return {name: _orphans(text, now) for name, text in zip(wanted, texts, strict=True)}


def _orphans(text: str | None, now: datetime) -> int | None:
    found = _stored(text, now)
    return found[1] if found is not None and isinstance(found[1], int) else None


def _stored(text: Any, now: datetime) -> tuple[datetime, Any] | None:
    """Return when a stored text was told and what it says; None for one that is old or of another version."""
    if not isinstance(text, str):
        return None
    try:
        at, said = json.loads(text)
        when = datetime.fromtimestamp(at, tz=UTC)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        log.warning("a stored list of processes cannot be read: %s", error)
        return None
    return (when, said) if (now - when).total_seconds() <= FRESH_S else None
