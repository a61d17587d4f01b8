"""Telemetry for pages and the API: what was measured last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from portal.telemetry.frames import ExtraFigures, LeaseNow
from portal.telemetry.latest import stored_frames
from portal.telemetry.node_view import is_fresh
from portal.telemetry.ring import Readings, readings


@dataclass(frozen=True, slots=True)
class Reading:
    """A lease's own figures at one second; None is unknown."""

    util: float | None
    memory_used_mib: int | None
    memory_mib: int
    power_w: float | None
    source: str
    at: float
    more: ExtraFigures | None = None


def latest_for_leases(uids: Iterable[str], *, now: datetime | None = None) -> dict[str, Reading | None]:
    """Return what was measured last of each lease, None for one that has not been measured lately.

    From this process's memory where it has a live hub, else from Redis; no query.
    """
    wanted = list(uids)
    if not wanted:
        return {}
    at = (now or timezone.now()).timestamp()
    seen = _present().leases
    return {uid: _reading(seen.get(uid), at) for uid in wanted}


def _present() -> Readings:
    if readings.is_fed:
        return readings
    found = Readings()
    for frame in stored_frames():
        found.take(frame)
    return found


def _reading(seen: LeaseNow | None, now: float) -> Reading | None:
    if seen is None or not is_fresh(seen.at, now=now):
        return None
    return Reading(
        seen.util, seen.memory_used_mib, seen.memory_mib, seen.power_w, seen.source, seen.at, seen.more
    )
