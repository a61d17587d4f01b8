"""Nudges: the row is the work, the message only makes it soon.

``add`` in the transaction, ``nudge`` after commit, ``sweep`` every five seconds for what was lost.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from portal.celery import app as celery
from portal.common.failpoints import failpoint
from portal.common.live import redis_client
from portal.common.models import OutboxItem
from portal.common.sql import execute, fetch

log = logging.getLogger(__name__)
RUN_CYCLE = "scheduler.tasks.run_cycle"
COALESCE_MS = 2000
MAX_ATTEMPTS = 100


ITEM = "INSERT INTO common_outboxitem (topic, key, created_at, attempts) VALUES (%s, %s, %s, 0)"


def add(topic: str, *, key: str, at: datetime) -> None:
    """Owe a nudge. Call inside the transaction that makes the work."""
    execute(ITEM, [topic, key, at])


def nudge(topic: str) -> None:
    """Send the task now unless one is already on its way; never raises, never blocks for long."""
    failpoint("nudge.before_send")
    try:
        if redis_client().set(_pending(topic), 1, nx=True, px=COALESCE_MS):
            celery.send_task(topic, retry=False)
    except (RedisError, KombuError, OSError) as error:
        log.warning("nudge %s not sent (%s): the sweeper will", topic, error)


def nudge_on_commit(topic: str) -> None:
    """Nudge once the transaction is through."""
    transaction.on_commit(lambda: nudge(topic))


def begin(topic: str) -> int:
    """Say that the work of ``topic`` starts now: later nudges are sent again.

    Returns the id of the newest item the work will cover; pass it to ``done``.
    """
    try:
        redis_client().delete(_pending(topic))
    except RedisError as error:
        log.warning("cannot clear the nudge mark of %s: %s", topic, error)
    newest = fetch("SELECT id FROM common_outboxitem WHERE topic = %s ORDER BY id DESC LIMIT 1", [topic])
    return int(newest[0][0]) if newest else 0


def done(topic: str, upto: int) -> None:
    """Forget the items that the finished work covered. Safe to repeat."""
    if upto:
        execute("DELETE FROM common_outboxitem WHERE topic = %s AND id <= %s", [topic, upto])


def sweep(*, at: datetime) -> list[str]:
    """Nudge again what is older than five seconds; returns the topics nudged."""
    old = OutboxItem.objects.filter(created_at__lt=at - timedelta(seconds=5), attempts__lt=MAX_ATTEMPTS)
    topics = sorted(set(old.values_list("topic", flat=True)))
    old.update(attempts=F("attempts") + 1, last_nudged_at=at)
    for topic in topics:
        nudge(topic)
    return topics


def _pending(topic: str) -> str:
    return f"berth:nudge:{topic}"
