"""Finished minutes from Redis into rows. A lost Redis costs minutes of charts, never money."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError, connection, transaction
from redis.exceptions import RedisError

from portal.common.live import redis_client
from portal.common.retry import is_passing, with_retries
from portal.telemetry import minutes
from portal.telemetry.ingest import MINUTES
from portal.telemetry.models import MinuteRollup

log = logging.getLogger(__name__)
BATCH = 200
KEEP = timedelta(days=30)
# A node whose agent changed the web process within a minute leaves two parts: the fuller one stays.
_PUT = """
INSERT INTO telemetry_minuterollup
  (device_id, lease_id, minute, samples, util_mean, util_max, memory_max_mib, energy_mj,
   energy_refused, sm_mean, tensor_mean, bandwidth_mean, power_mean_w)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT {target} DO UPDATE SET
  samples = excluded.samples, util_mean = excluded.util_mean, util_max = excluded.util_max,
  memory_max_mib = excluded.memory_max_mib, energy_mj = excluded.energy_mj,
  energy_refused = excluded.energy_refused, sm_mean = excluded.sm_mean,
  tensor_mean = excluded.tensor_mean, bandwidth_mean = excluded.bandwidth_mean, power_mean_w = excluded.power_mean_w
WHERE telemetry_minuterollup.samples < excluded.samples
"""
_PUT_DEVICE = _PUT.format(target="(device_id, minute) WHERE lease_id IS NULL")
_PUT_LEASE = _PUT.format(target="(lease_id, minute) WHERE device_id IS NULL")


def roll_up_minutes(*, now: datetime) -> int:
    """Store the finished minutes that wait in Redis and forget old ones; returns how many node minutes.

    An entry is taken from the list after it is stored. Two workers at once store the same rows.
    """
    stored = 0
    try:
        while entries := [str(entry) for entry in redis_client().lrange(MINUTES, 0, BATCH - 1)]:
            stored += sum(_store(entry, now) for entry in entries)
            with redis_client().pipeline(transaction=False) as pipe:
                for entry in entries:
                    pipe.lrem(MINUTES, 1, entry)
                pipe.execute()
    except RedisError as error:
        log.warning("minutes not read: %s", error)
    if now.minute == 0:
        MinuteRollup.objects.filter(minute__lt=now - KEEP).delete()
    return stored


def _store(entry: str, now: datetime) -> int:
    """Store one node minute; an entry that cannot be stored is dropped with a line in the log."""
    try:
        minute = minutes.read(entry)
        begins = datetime.fromtimestamp(minute.begins, tz=UTC)
        if not now - KEEP <= begins <= now + timedelta(minutes=5):
            raise ValueError(f"minute {begins} is out of range")
        with_retries(lambda: put_minute(minute, begins))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as error:
        log.warning("a stored minute cannot be read: %s", error)
        return 0
    except DatabaseError as error:
        if is_passing(error):
            raise
        log.warning("a stored minute cannot be kept: %s", error)
        return 0
    return 1


@transaction.atomic
def put_minute(minute: minutes.Minute, begins: datetime) -> None:
    """Write one node's minute. Safe to repeat: a fuller part replaces a lesser one."""
    with connection.cursor() as cursor:
        cursor.executemany(_PUT_DEVICE, [_row(pk, None, begins, sums) for pk, sums in minute.devices.items()])
        cursor.executemany(_PUT_LEASE, [_row(None, pk, begins, sums) for pk, sums in minute.leases.items()])


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
