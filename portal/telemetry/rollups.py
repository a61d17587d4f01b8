"""Finished minutes from Redis into rows. A lost Redis costs minutes of charts, never money."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, connection, transaction
from redis.exceptions import RedisError

from portal.common.live import redis_client
from portal.common.retry import is_passing, with_retries
from portal.telemetry import minutes
from portal.telemetry.ingest import MINUTES
from portal.telemetry.partitions import minutes_since

log = logging.getLogger(__name__)
BATCH = 200
# Columns of a row with their types, in the order of ``_row``.
_COLUMNS = {
    "device_id": "bigint", "lease_id": "bigint", "minute": "timestamptz", "samples": "int", "util_mean": "float8",
    "util_max": "float8", "memory_max_mib": "int", "energy_mj": "bigint", "energy_refused": "int", "sm_mean": "float8",
    "tensor_mean": "float8", "bandwidth_mean": "float8", "power_mean_w": "float8",
}  # fmt: skip
_KEYS = ("device_id", "lease_id", "minute")
# A node whose agent changed the web process within a minute leaves two parts: the fuller one stays. All rows of a batch
# go as one statement of arrays, in an order that two workers share; each on its own takes four times the CPU.
_PUT = f"""
INSERT INTO telemetry_minuterollup ({", ".join(_COLUMNS)})
SELECT DISTINCT ON ({{of}}, minute) * FROM unnest({", ".join(f"%s::{kind}[]" for kind in _COLUMNS.values())})
       AS told ({", ".join(_COLUMNS)})
 ORDER BY {{of}}, minute, samples DESC
ON CONFLICT ({{of}}, minute) WHERE {{other}} IS NULL DO UPDATE SET
  {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in _KEYS)}
WHERE telemetry_minuterollup.samples < excluded.samples
"""  # noqa: S608 (our own columns)
_PUT_DEVICES = _PUT.format(of="device_id", other="lease_id")
_PUT_LEASES = _PUT.format(of="lease_id", other="device_id")
Told = tuple[minutes.Minute, datetime]


def roll_up_minutes(*, now: datetime) -> int:
    """Store the finished minutes that wait in Redis; returns how many node minutes.

    An entry is taken from the list after it is stored. Two workers at once store the same rows.
    """
    stored = 0
    try:
        while entries := [str(entry) for entry in redis_client().lrange(MINUTES, 0, BATCH - 1)]:
            stored += _store(entries, now)
            with redis_client().pipeline(transaction=False) as pipe:
                for entry in entries:
                    pipe.lrem(MINUTES, 1, entry)
                pipe.execute()
    except RedisError as error:
        log.warning("minutes not read: %s", error)
    return stored


def _store(entries: Iterable[str], now: datetime) -> int:
    """Store node minutes; what cannot be read or kept is dropped with a line in the log. Returns how many were kept."""
    return _keep([one for entry in entries if (one := _read(entry, now)) is not None])


def _keep(told: Sequence[Told]) -> int:
    try:
        with_retries(lambda: put_minutes(told))
    except (DatabaseError, OverflowError, ValueError, TypeError) as error:
        if isinstance(error, DatabaseError) and is_passing(error):
            raise
        if len(told) > 1:
            # One that cannot be kept must not take the others with it.
            return sum(_keep([one]) for one in told)
        log.warning("a stored minute cannot be kept: %s", error)
        return 0
    return len(told)


def _read(entry: str, now: datetime) -> Told | None:
    try:
        minute = minutes.read(entry)
        begins = datetime.fromtimestamp(minute.begins, tz=UTC)
        if not minutes_since(now) <= begins <= now + timedelta(minutes=5):
            raise ValueError(f"minute {begins} is out of range")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as error:
        log.warning("a stored minute cannot be read: %s", error)
        return None
    return minute, begins


@transaction.atomic
def put_minutes(told: Sequence[Told]) -> None:
    """Write minutes of nodes, which begin at these times. Safe to repeat: a fuller part replaces a lesser one."""
    devices = [_row(pk, None, at, sums) for minute, at in told for pk, sums in minute.devices.items()]
    leases = [_row(None, pk, at, sums) for minute, at in told for pk, sums in minute.leases.items()]
    with connection.cursor() as cursor:
        for statement, rows in ((_PUT_DEVICES, devices), (_PUT_LEASES, leases)):
            if rows:
                cursor.execute(statement, [list(column) for column in zip(*rows, strict=True)])


def _row(
    device_id: int | None, lease_id: int | None, begins: datetime, sums: minutes.MinuteSums
) -> tuple[Any, ...]:
    return (
        device_id,
        lease_id,
        begins,
        sums.samples,
        sums.util_mean,
        sums.util_max,
        sums.memory_max_mib,
        sums.energy_mj,
        min(sums.energy_refused, 32_767),
        *(sums.activity_mean(name) for name in minutes.ACTIVITY),
    )
