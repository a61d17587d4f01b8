"""The last published picture of the installation, read once per version and process."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from functools import cached_property
from threading import Lock, Thread

from redis.exceptions import RedisError

from portal.common.live import redis_client
from scheduler.engine import snapshot_from_json
from scheduler.engine.calibration import Calibration
from scheduler.engine.forecaster import forecaster_of
from scheduler.engine.model import PolicyRules, Snapshot
from scheduler.engine.outcome import outcome

log = logging.getLogger(__name__)
SNAPSHOT_KEY = "berth:snapshot"
CALIBRATION_KEY = "berth:calibration"
CALIBRATION_LIVES_S = 3600
HORIZON_S = 14 * 86_400
# A picture of a large fleet that took longer than this is used for as many times as long as it took, and then
# replaced behind the back of who asks; every other one as soon as there is a newer one.
LARGE, CHEAP_S, PATIENCE = 200_000, 0.1, 4.0
MOST_OLD_S = 300.0


class Picture:
    """A published snapshot: as rows have it (``book``), and what it will probably come to (``expected``).

    ``cost_s`` is how long reading it and playing its future forward took so far.
    """

    def __init__(self, raw: str) -> None:
        """Decode it. Raises ValueError for anything but a snapshot."""
        began = time.monotonic()
        self.raw = raw
        self.book: Snapshot = snapshot_from_json(raw.encode())
        self.made = time.monotonic()
        self.cost_s = self.made - began
        self.policy: PolicyRules | None = None

    @cached_property
    def expected(self) -> Snapshot:
        """Return the snapshot with the ends and lengths that were learned; the same object where none were."""
        found = outcome(self.book)
        return self.book if found == self.book else found

    def play(self, policy: PolicyRules) -> Picture:
        """Return the picture with its futures played, so that the engine answers at once; once per policy."""
        if self.policy != policy:
            began = time.monotonic()
            forecaster_of(self.expected, policy, HORIZON_S)
            if self.expected is not self.book:
                forecaster_of(self.book, policy, HORIZON_S)
            self.cost_s += time.monotonic() - began
            self.policy = policy
        return self


_last: list[Picture] = []  # the picture of this process, at most one: a fleet's snapshot is large
_renewing = Lock()


def picture() -> Picture | None:
    """Return the last published picture, or None when there is none or it cannot be read.

    It is decoded anew only when other bytes were published. Where that and playing it forward take long, the
    one at hand answers meanwhile, for at most ``MOST_OLD_S``. Changes nothing in the database.
    """
    known = _last[0] if _last else None
    if known is not None and len(known.raw) >= LARGE and known.cost_s >= CHEAP_S:
        age = time.monotonic() - known.made
        if age < PATIENCE * known.cost_s:
            return known
        if age < MOST_OLD_S:
            if _renewing.acquire(blocking=False):
                Thread(target=_renew, args=(known,), daemon=True).start()
            return known
    return _read(known)


def _renew(known: Picture) -> None:
    """Read the newest picture and play it forward as the last one was, then put it in the last one's place."""
    try:
        raw = _raw()
        if not raw:
            _last.clear()
        elif raw != known.raw:
            found = Picture(raw)
            if known.policy is not None:
                found.play(known.policy)
            _last[:] = [found]
        else:
            known.made = time.monotonic()
    except ValueError:
        log.warning("the published snapshot cannot be read")
    finally:
        _renewing.release()


def _read(known: Picture | None) -> Picture | None:
    raw = _raw()
    if not raw:
        _last.clear()
        return None
    if known is not None and known.raw == raw:
        return known
    try:
        found = Picture(raw)
    except ValueError:
        return None
    _last[:] = [found]
    return found


def _raw() -> str:
    """Return what is published, "" for nothing."""
    try:
        return str(redis_client().get(SNAPSHOT_KEY) or "")
    except RedisError:
        return ""


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
        )
    except (RedisError, ValueError, TypeError, KeyError):
        return Calibration()
