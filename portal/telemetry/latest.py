"""The newest frame of each node in Redis: for processes that just started and those without sockets."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError

from portal.common.live import redis_client
from portal.telemetry.frames import Frame, unpack

log = logging.getLogger(__name__)
LATEST = "berth:latest"  # hash: node name to its newest frame
LATEST_FOR_S = 3600


def frames_in(stored: Mapping[Any, Any]) -> list[Frame]:
    """Return the frames in a stored hash; one that cannot be read is left out."""
    found = []
    for node, text in stored.items():
        try:
            found.append(unpack(json.loads(text)))
        except (ValueError, TypeError) as error:
            log.warning("the stored frame of %s cannot be read: %s", node, error)
    return found


def stored_frames() -> list[Frame]:
    """Return the newest frame of every node, or nothing when Redis is away. Synchronous."""
    try:
        return frames_in(redis_client().hgetall(LATEST))
    except RedisError as error:
        log.warning("stored frames not read: %s", error)
        return []
