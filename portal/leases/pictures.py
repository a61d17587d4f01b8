"""The last published picture of the installation, read once per version and process."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from functools import cached_property

from redis.exceptions import RedisError

from portal.common.live import redis_client
from scheduler.engine import snapshot_from_json
from scheduler.engine.calibration import Calibration
from scheduler.engine.model import Snapshot
from scheduler.engine.outcome import outcome

log = logging.getLogger(__name__)
SNAPSHOT_KEY = "berth:snapshot"
CALIBRATION_KEY = "berth:calibration"
CALIBRATION_LIVES_S = 3600
_last: list[Picture] = []  # the picture of this process, at most one: a fleet's snapshot is large


@dataclass(frozen=True)
class Picture:
    """A published snapshot: as rows have it (``book``), and what it will probably come to (``expected``)."""

    raw: str
    book: Snapshot

    @cached_property
    def expected(self) -> Snapshot:
        """Return the snapshot with the ends and lengths that were learned; the same object where none were."""
        found = outcome(self.book)
        return self.book if found == self.book else found


def picture() -> Picture | None:
    """Return the last published picture, or None when there is none or it cannot be read.

    It is decoded anew only when other bytes were published. Changes nothing in the database.
    """
    try:
        raw = redis_client().get(SNAPSHOT_KEY)
    except RedisError:
        return None
    if not raw:
        return None
    known = _last[0] if _last else None
    if known is not None and known.raw == raw:
        return known
    try:
        found = Picture(str(raw), snapshot_from_json(str(raw).encode()))
    except ValueError:
        return None
    _last[:] = [found]
    return found


def published_snapshot() -> Snapshot | None:
    """Return the last published snapshot, or None when there is none or it cannot be read."""
    found = picture()
    return None if found is None else found.book


def publish_calibration(found: Calibration) -> None:
    """Publish how far forecasts can be trusted; a Redis that is away costs a log line."""
    try:
        redis_client().set(CALIBRATION_KEY, json.dumps(asdict(found)), ex=CALIBRATION_LIVES_S)
    except RedisError as error:
        log.warning("calibration not published: %s", error)


def published_calibration() -> Calibration:
    """Return the calibration in force: the wide default when none is published or it cannot be read."""
    try:
        raw = redis_client().get(CALIBRATION_KEY)
        if not raw:
            return Calibration()
        body = json.loads(str(raw))
        return Calibration(
            tuple(float(v) for v in body["p50"]),
            tuple(float(v) for v in body["p90"]),
            int(body["samples"]),
            float(body["level"]),
        )
    except (RedisError, ValueError, TypeError, KeyError):
        return Calibration()
