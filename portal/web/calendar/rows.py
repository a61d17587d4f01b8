"""The calendar as its page draws it: nodes, devices, lanes and bars on a grid of columns.

A bar says its place by classes (``at-3 to-9``), never by a style: the content security policy refuses those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from portal.common.moments import moment
from portal.fleet.models import Device
from portal.leases.calendar import CalendarEntry

WIDE_ENOUGH = 6  # columns that a bar takes at least on its lane: 24 pixels, so that it can be pointed at
COLUMNS = 168  # seven for every hour of a day, one for every hour of a week; static/css/calendar.css has a class each
DAYS = {"day": 1, "week": 7}


@dataclass(frozen=True, slots=True)
class ShownDays:
    """The days that are shown, in the time zone in use, with the addresses of those before and behind."""

    view: str
    since: datetime
    until: datetime

    def column(self, at: datetime) -> int:
        """Return the column in which an instant lies, 0 to ``COLUMNS``."""
        since, until = self.since.timestamp(), self.until.timestamp()  # instants: a day may have 23 hours
        part = (at.timestamp() - since) / (until - since)
        return max(0, min(COLUMNS, int(part * COLUMNS)))

    @property
    def before(self) -> str:
        """Return the day with which the span before begins."""
        return f"{(self.since - timedelta(days=DAYS[self.view])).date()}"

    @property
    def behind(self) -> str:
        """Return the day with which the span behind begins."""
        return f"{timezone.localtime(self.until).date()}"


@dataclass(frozen=True, slots=True)
class Tick:
    """One hour or day of the head, with the request form for its begin; no address where it is over."""

    label: str
    title: str
    classes: str
    url: str


@dataclass(frozen=True, slots=True)
class CalendarBar:
    """One thing on a lane; no ``url`` where there is nothing to open."""

    classes: str
    label: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """A device, or a node with its maintenance: lanes with bars that do not cover each other."""

    name: str
    detail: str
    url: str
    lanes: list[list[CalendarBar]]
    is_node: bool = False


@dataclass(frozen=True, slots=True)
class CalendarLine:
    """One entry of the table that says the same in words."""

    where: str
    what: str
    who: str
    starts_at: datetime
    ends_at: datetime
    url: str
    state: str


def span_of(view: str, on: str, *, now: datetime) -> ShownDays:
    """Return the days to show; a view or day that makes no sense falls back to a week from today."""
    view = view if view in DAYS else "week"
    zone = timezone.get_current_timezone()
    day = timezone.localtime(now).date()
    try:
        asked = datetime.strptime(on, "%Y-%m-%d").date()  # noqa: DTZ007 (a day of the calendar)
    except ValueError:
        asked = day
    if 2001 <= asked.year <= 2998:
        day = asked
    since = datetime.combine(day, time(), tzinfo=zone)
    until = datetime.combine(day + timedelta(days=DAYS[view]), time(), tzinfo=zone)
    return ShownDays(view, since, until)


def ticks(span: ShownDays, *, now: datetime) -> list[Tick]:
    """Return the hours of a day or the days of a week."""
    step = timedelta(hours=1) if span.view == "day" else timedelta(days=1)
    found: list[Tick] = []
    wall = span.since.replace(tzinfo=None)
    while True:
        at = wall.replace(tzinfo=span.since.tzinfo)
        if at >= span.until:
            return found
        end = (wall + step).replace(tzinfo=span.since.tzinfo)
        found.append(_tick(span, at, min(end, span.until), now))
        wall += step


def _tick(span: ShownDays, at: datetime, end: datetime, now: datetime) -> Tick:
    label = f"{at:%H}" if span.view == "day" else date_format(at, "D j")
    place = f"at-{span.column(at)} to-{span.column(end)}"
    starts_at = at if at > now else None
    if starts_at is None and end > now and span.view == "week":
        starts_at = (now + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    title = _("Ask for a start %(at)s") % {"at": moment(starts_at or at)}
    return Tick(label, title if starts_at else "", place, _book(starts_at) if starts_at else "")


def _book(at: datetime) -> str:
    return f"{reverse('web:request_new')}?starts_at={timezone.localtime(at).isoformat().replace('+', '%2B')}"


def rows(devices: Sequence[Device], entries: Sequence[CalendarEntry], span: ShownDays) -> list[CalendarRow]:
    """Return a row per node, with its maintenance, followed by one per device."""
    by_device: dict[int, list[CalendarEntry]] = defaultdict(list)
    away: dict[str, list[CalendarEntry]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "maintenance":
            away[entry.node].append(entry)
        else:
            by_device[entry.device_id].append(entry)
    found: list[CalendarRow] = []
    for device in devices:
        node = device.node.name
        if not found or not any(row.is_node and row.name == node for row in found):
            url = reverse("web:node", args=[node])
            found.append(CalendarRow(node, "", url, _lanes(away[node], span), is_node=True))
        name = _("Device %(index)d") % {"index": device.index}
        here = [
            *by_device[device.pk],
            *away[node],
        ]  # maintenance closes each device: its row must not look free
        found.append(CalendarRow(name, device.model.name, "", _lanes(here, span)))
    return found


def _lanes(entries: Iterable[CalendarEntry], span: ShownDays) -> list[list[CalendarBar]]:
    """Return the bars on as few lanes as needed, so that no two cover each other; one empty lane for none."""
    lanes: list[tuple[int, list[CalendarBar]]] = []
    for entry in sorted(entries, key=lambda e: (e.starts_at, e.start)):
        begin, end = span.column(entry.starts_at), span.column(entry.ends_at)
        begin = min(begin, COLUMNS - 1)
        end = max(end, begin + 1)
        bar = _bar(entry, begin, end)
        shown = max(end, begin + WIDE_ENOUGH)
        for number, (taken, bars) in enumerate(lanes):
            if taken <= begin:
                lanes[number] = (shown, [*bars, bar])
                break
        else:
            lanes.append((shown, [bar]))
    return [bars for _taken, bars in lanes] or [[]]


def _bar(entry: CalendarEntry, begin: int, end: int) -> CalendarBar:
    what = "own" if entry.is_own else "team" if entry.is_known else "busy"
    kind = "maintenance" if entry.kind == "maintenance" else f"{what} is-{entry.kind}"
    label = entry.note if entry.kind == "maintenance" else entry.name or _("Busy")
    return CalendarBar(f"at-{begin} to-{end} is-{kind}", label, title_of(entry), url_of(entry))


def url_of(entry: CalendarEntry) -> str:
    """Return the page of an entry; "" where there is none for this person."""
    if entry.kind == "promise":
        return f"{reverse('web:request', args=[entry.request])}?show=request" if entry.request else ""
    return reverse("web:lease", args=[entry.lease]) if entry.lease else ""


def title_of(entry: CalendarEntry) -> str:
    """Return an entry in one sentence, for those who point at it or hear it."""
    words = {
        "what": what_of(entry),
        "from": moment(entry.starts_at),
        "to": moment(entry.ends_at),
    }
    if entry.holder:
        return _("%(what)s · %(who)s, %(team)s · %(from)s to %(to)s") % {
            **words,
            "who": entry.holder,
            "team": entry.team_name,
        }
    return _("%(what)s · %(from)s to %(to)s") % words


def what_of(entry: CalendarEntry) -> str:
    """Return what an entry is, without times and people."""
    if entry.kind == "maintenance":
        return _("Maintenance: %(reason)s") % {"reason": entry.note}
    if entry.kind == "booking":
        return (
            _("Booked: %(name)s") % {"name": entry.name} if entry.is_known else _("Booked by somebody else")
        )
    if entry.kind == "promise":
        return (
            _("Promised to what waits: %(name)s") % {"name": entry.name}
            if entry.is_known
            else _("Promised to somebody who waits")
        )
    return entry.name if entry.is_known else _("In use by somebody else")


def lines(entries: Sequence[CalendarEntry]) -> list[CalendarLine]:
    """Return the entries as lines of a table; several placements of one lease on a node become one line."""
    found: dict[tuple[str, str, datetime], CalendarLine] = {}
    for entry in entries:
        key = (entry.lease or entry.window or f"{entry.device_id}/{entry.start}", entry.node, entry.starts_at)
        index = "" if entry.device_index is None else f"{entry.device_index}"
        if key in found:
            line = found[key]
            if index and index not in line.where.split(" · ")[-1].split(", "):
                found[key] = replace(line, where=f"{line.where}, {index}")
            continue
        where = f"{entry.node} · {index}" if index else entry.node
        found[key] = CalendarLine(
            where, what_of(entry), entry.holder, entry.starts_at, entry.ends_at, url_of(entry), entry.state
        )
    return list(found.values())
