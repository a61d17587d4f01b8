"""Telemetry for pages and the API: what is measured now, the last five minutes, and the minutes before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.utils import timezone

from portal.leases.models import Lease
from portal.telemetry import payloads
from portal.telemetry.frames import LeaseNow, More
from portal.telemetry.latest import stored_frames
from portal.telemetry.models import MinuteRollup
from portal.telemetry.nodeview import is_fresh
from portal.telemetry.ring import Readings, Row, readings

MOST_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Reading:
    """A lease's own figures at one second; None is unknown."""

    util: float | None
    memory_used_mib: int | None
    memory_mib: int
    power_w: float | None
    source: str
    at: float
    more: More | None = None


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


def lease_history(lease: Lease, *, now: datetime | None = None) -> list[Row]:
    """Return five minutes of (Unix second, utilisation, memory in MiB); empty without a live hub here."""
    return readings.history("lease", lease.uid, now=(now or timezone.now()).timestamp())


def lease_minutes(lease: Lease) -> list[MinuteRollup]:
    """Return the stored minutes of a lease in order, the last 24 hours of it at most."""
    rows = MinuteRollup.objects.filter(lease_id=lease.pk, device_id=None).order_by("-minute")[:MOST_MINUTES]
    return list(rows)[::-1]


def device_minutes(device_id: int, *, since: datetime) -> list[MinuteRollup]:
    """Return the stored minutes of a device in order."""
    rows = MinuteRollup.objects.filter(device_id=device_id, lease_id=None, minute__gte=since)
    return list(rows.order_by("minute")[:MOST_MINUTES])


def map_name(uid: str, *, is_seen: bool) -> str:
    """Return how a lease is called in ``fleet`` and ``node:`` topics: its uid, or an alias for strangers.

    A page that draws the map must use the same name, so that live levels find their slices.
    """
    return uid if is_seen else payloads.alias(uid, secret=settings.SECRET_KEY)
