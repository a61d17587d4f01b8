"""When each size is free in the next seven days, hour by hour, on the columns of the calendar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.moments import moment
from portal.leases.availability import MOST_STEPS, FlavorHours, availability
from portal.web.availability import free_level
from portal.web.calendar.rows import ShownDays

HOUR = timedelta(hours=1)
POINTED_AT = 7  # columns that a link takes at least: 24 pixels where the calendar is narrowest


@dataclass(frozen=True, slots=True)
class FreeStretch:
    """Hours in which about as many units are free; ``text`` is the least of them, no ``url`` where none is."""

    classes: str
    text: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class FreeRow:
    """One size with its stretches from left to right."""

    name: str
    stretches: list[FreeStretch]


def free_rows(span: ShownDays, *, model: str = "", now: datetime) -> list[FreeRow]:
    """Return a row per offered size, of one device model where its slug is given.

    No row where nothing is known: without a published picture, and for days that are over or more than a week away.
    Quota and queue are left out; promised starts and bookings count as taken.
    """
    if span.until <= now or span.since >= now + MOST_STEPS * HOUR:
        return []
    seen = availability(steps=MOST_STEPS, now=now)
    if not seen.is_known:
        return []
    return [
        FreeRow(row.flavor.shown_name, list(_stretches(row, seen.starts, span, now)))
        for row in seen.rows
        if model in ("", row.flavor.device_model.slug)
    ]


def _stretches(
    row: FlavorHours, starts: list[datetime], span: ShownDays, now: datetime
) -> Iterator[FreeStretch]:
    most = max((free for free in row.free if free), default=0)
    hours = [
        (at, free, free_level(free, most))
        for at, free in zip(starts, row.free, strict=True)
        if free is not None
    ]
    for level, group in groupby(hours, key=lambda hour: hour[2]):
        own = list(group)
        begin, end = max(own[0][0], now), own[-1][0] + HOUR
        seen_from = max(begin, span.since)
        first, last = span.column(seen_from), span.column(min(end, span.until))
        if end <= span.since or begin >= span.until or first >= last:
            continue
        least = min(free for _at, free, _level in own)
        words = {"n": least, "from": moment(begin), "to": moment(end)}
        title = ngettext("%(from)s to %(to)s: %(n)d free", "%(from)s to %(to)s: %(n)d free", least) % words
        if any(free != least for _at, free, _level in own):
            title = _("%(from)s to %(to)s: at least %(n)d free") % words
        is_wide = last - first >= POINTED_AT
        url = _asked(row.flavor.slug, seen_from, is_now=seen_from == now) if least and is_wide else ""
        yield FreeStretch(f"at-{first} to-{last} level-{level}", str(least), title, url)


def _asked(flavor: str, at: datetime, *, is_now: bool) -> str:
    """Return the request form for a flavor and, but for a start as soon as can be, the start."""
    url = f"{reverse('web:request_new')}?flavor={flavor}"
    return url if is_now else f"{url}&starts_at={timezone.localtime(at).isoformat().replace('+', '%2B')}"
