"""When a message may go out: digests once a day, and nothing in quiet hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from portal.notifications.models import ContactPoint


def may_go_at(contact: ContactPoint, at: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant from ``at`` on at which this contact point wants to be told, in UTC.

    Hours are those of the wall in ``zone``: one that summer time leaves out is the one after it.
    """
    if contact.digest_at is not None:
        return _next(contact.digest_at, at, zone)
    if contact.quiet_from is None or contact.quiet_until is None:
        return at
    local = at.astimezone(zone)
    minute = local.hour * 60 + local.minute
    begins, ends = contact.quiet_from, contact.quiet_until
    is_quiet = begins <= minute < ends if begins < ends else minute >= begins or minute < ends
    return _next(ends, at, zone) if is_quiet else at


def _next(minute: int, at: datetime, zone: ZoneInfo) -> datetime:
    local = at.astimezone(zone)
    today = local.replace(hour=minute // 60, minute=minute % 60, second=0, microsecond=0)
    # The hour that a day has twice counts both times.
    for day in (today.replace(fold=0), today.replace(fold=1), today.replace(fold=0) + timedelta(days=1)):
        if day.astimezone(UTC) >= at:
            return day.astimezone(UTC)
    raise AssertionError("tomorrow is never before today")
