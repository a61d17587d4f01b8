"""How many streams the gateways carry: each says it now and then in Redis, and those that fell silent do not count."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from django.utils import timezone
from redis.exceptions import RedisError

from portal.common.live import hub, redis_client

log = logging.getLogger(__name__)
COUNTS: Final = "berth:gateway_streams"  # hash: a gateway's process to what it said last
TOLD_EVERY_S: Final = 5.0
COUNTS_FOR_S: Final = 20.0
FORGOTTEN_S: Final = 3600.0


async def tell_counts(count: Callable[[], Mapping[str, int]]) -> None:
    """Say how many streams of each kind this process has, until cancelled."""
    me = secrets.token_hex(8)
    while True:
        try:
            said = json.dumps({"at": timezone.now().timestamp(), **count()})
            await hub().client.hset(COUNTS, me, said)
            await hub().client.expire(COUNTS, int(COUNTS_FOR_S))
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("streams not counted: %s", error)
        await asyncio.sleep(TOLD_EVERY_S)


def stream_counts(*, now: datetime) -> dict[str, int]:
    """Return open streams by kind over all gateways; empty where none says anything: unknown, not zero."""
    try:
        told: Mapping[str, str] = redis_client().hgetall(COUNTS)  # type: ignore[assignment]
        total: dict[str, int] = {}
        for teller, text in told.items():
            said = json.loads(text)
            silent_s = now.timestamp() - said.pop("at")
            if silent_s > FORGOTTEN_S:
                redis_client().hdel(COUNTS, teller)
            for kind, n in said.items() if silent_s <= COUNTS_FOR_S else ():
                total[kind] = total.get(kind, 0) + int(n)
    except RedisError:
        return {}
    return total
