"""The operator's home: how much of the fleet works, who waits, what needs a hand, and the next 24 hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.billing.selectors import currency
from portal.catalog.first_start import progress
from portal.teams.selectors import Rights
from portal.telemetry.utilisation import FleetHour, allocated_now, fleet_hours, known
from portal.web.charts import Plot, PlotLayer, clock, grounds, stacked, weekday
from portal.web.figures import gpus, money
from portal.web.home.agenda import coming_hours
from portal.web.home.fleet_queue import QueueRow, queue_by_flavor, start_waits
from portal.web.home.troubles import Trouble, troubles
from portal.web.load import next_day_text

HOUR = timedelta(hours=1)
RANGES = {"24h": 24, "7d": 168}


@dataclass(frozen=True)
class Tile:
    """One figure at the head of a home; ``value`` None is unknown, ``tone`` "" as usual."""

    label: str
    value: str | None
    unit: str
    hint: str
    icon: str
    url: str
    tone: str = ""


def context(request: HttpRequest, _rights: Rights, now: datetime) -> dict[str, Any]:
    """Return what an operator's day begins with."""
    chosen = request.GET.get("range", "")
    n_hours = RANGES.get(chosen, 24)
    hours = fleet_hours(since=first_hour(n_hours, now), hours=n_hours, now=now)
    queue = queue_by_flavor(now=now)
    found = troubles(now=now)
    steps = progress()
    return {
        "headline": _headline(hours, found),
        "tiles": _tiles(hours, queue, now),
        "picture": fleet_picture(hours),
        "ranges": [
            (_("24 hours"), "?home=operations", n_hours == 24),
            (_("7 days"), "?home=operations&range=7d", n_hours != 24),
        ],
        "queue": queue,
        "troubles": found,
        "ahead": coming_hours(now=now),
        "demand": next_day_text(now=now),
        "is_set_up": steps.is_ready,
    }


def first_hour(n_hours: int, now: datetime) -> datetime:
    """Return where the picture begins, a full hour in UTC as hours are counted.

    That is 23 hours before this one, or the first at or after the midnight of six days ago where one looks: half
    past midnight where clocks stand half an hour apart from UTC.
    """
    if n_hours <= 24:
        return now.replace(minute=0, second=0, microsecond=0) - (n_hours - 1) * HOUR
    local = timezone.localtime(now) - timedelta(days=6)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
    full = midnight.replace(minute=0)
    return full if full == midnight else full + HOUR


def percent(part: int | None, whole: int) -> int | None:
    """Return a share in whole percent; None where the part is unknown or there is nothing to share."""
    return None if part is None or not whole else round(100 * part / whole)


def fleet_picture(hours: Sequence[FleetHour]) -> Plot:
    """Return allocated, used and wasted by hour as columns; an hour of which nothing is known is a gap."""
    capacity = max((hour.capacity for hour in hours), default=0)

    def row(value: Callable[[FleetHour], int]) -> list[float | None]:
        return [value(hour) if hour.is_known else None for hour in hours]

    seen = known(hours)

    def mean_text(value: Callable[[FleetHour], int]) -> str:
        return _figure(round(sum(value(hour) for hour in seen) / len(seen))) if seen else ""

    parts: tuple[tuple[str, str, str, Callable[[FleetHour], int]], ...] = (
        (pgettext("devices", "Used"), "plot-used", "", lambda h: h.used or 0),
        (pgettext("devices", "Held, not used"), "plot-idle", "fill-hatch", lambda h: h.idle),
        (pgettext("devices", "Held, not measured"), "plot-unmeasured", "fill-dots", lambda h: h.unmeasured),
        (pgettext("devices", "Free"), "plot-free", "", lambda h: h.free),
        (pgettext("devices", "Unavailable"), "plot-away", "fill-cross", lambda h: h.unavailable),
    )
    layers = [
        PlotLayer(name, css, row(value), pattern, mean_text(value)) for name, css, pattern, value in parts
    ]
    heads = [layer.name for layer in layers]
    is_week = len(hours) > 24
    labels = [
        date_format(timezone.localtime(hour.at), "D H:i") if is_week else clock(hour.at) for hour in hours
    ]
    rows = [
        [_figure(value(hour)) if hour.is_known else _("unknown") for *_names, value in parts]
        for hour in hours
    ]
    top = max(capacity, max((h.allocated + h.unavailable for h in seen), default=0), 1000)
    marks = [weekday(hour.at) for hour in hours[::24]] if is_week else [clock(hour.at) for hour in hours[::4]]
    return Plot(
        title=_("Last 7 days") if is_week else _("Last 24 hours"),
        summary=_summary(seen),
        layers=stacked(layers, top),
        curves=[],
        columns=grounds(labels, rows, heads),
        heads=heads,
        ticks=[gpus(round(top * part / 4)) or "0" for part in (4, 3, 2, 1, 0)],
        lines=[0, 75, 150, 225, 300],
        marks=marks,
        unit=_("Devices on average by hour; slices count by their share"),
        url=reverse("web:cluster"),
        link=_("Cluster"),
        is_empty=not any(hour.allocated for hour in seen),
    )


def _figure(milli: int) -> str:
    return f"{milli / 1000:.1f}"


def _summary(seen: Sequence[FleetHour]) -> str:
    capacity = sum(hour.capacity for hour in seen)
    allocated = percent(sum(hour.allocated for hour in seen), capacity)
    measured = [hour for hour in seen if hour.used is not None]
    used = percent(sum(hour.used or 0 for hour in measured), sum(hour.capacity for hour in measured))
    if allocated is None:
        return _("Nothing is known yet.")
    if used is None:
        return _("On average %(n)d %% of the devices were allocated; use was not measured.") % {
            "n": allocated
        }
    return _("On average %(n)d %% of the devices were allocated and %(used)d %% used.") % {
        "n": allocated, "used": used,
    }  # fmt: skip


def _headline(hours: Sequence[FleetHour], found: Sequence[Trouble]) -> str:
    """Return the answer of the day in one sentence."""
    seen = known(hours)
    needs = len(found)
    hands = (
        ngettext("one thing needs you", "%(n)d things need you", needs) % {"n": needs}
        if needs
        else _("nothing needs you")
    )
    if not seen or not seen[-1].capacity:
        return _("No device yet, %(hands)s") % {"hands": hands}
    allocated = percent(allocated_now(), seen[-1].capacity)
    used = _last_measured(seen)
    if used is None:
        return _("%(n)d %% allocated, %(hands)s") % {"n": allocated, "hands": hands}
    return _("%(n)d %% allocated, %(used)d %% used, %(hands)s") % {
        "n": allocated, "used": percent(used.used, used.capacity), "hands": hands,
    }  # fmt: skip


def _last_measured(seen: Sequence[FleetHour]) -> FleetHour | None:
    """Return the last hour of which at least half of what was held was measured."""
    return next(
        (h for h in reversed(seen[-3:]) if h.used is not None and h.measured * 2 >= h.allocated), None
    )


def _tiles(hours: Sequence[FleetHour], queue: Sequence[QueueRow], now: datetime) -> list[Tile]:
    seen = known(hours)
    capacity = seen[-1].capacity if seen else 0
    held = allocated_now()
    last = _last_measured(seen)
    used = percent(last.used, last.capacity) if last else None
    of_held = percent(last.used, last.measured) if last else None
    idle = money(last.idle_micro) if last else None
    waits = start_waits(now=now)
    waiting = sum(row.count for row in queue)
    cluster, requests = reverse("web:cluster"), f"{reverse('web:requests')}?state=queued"
    share = percent(held, capacity)
    return [
        Tile(
            _("Allocated now"), None if share is None else str(share), "%",
            _("%(n)s of %(all)s devices") % {"n": _figure(held), "all": gpus(capacity)}, "layout-grid", cluster,
        ),
        Tile(
            _("Used"), None if used is None else str(used), "%",
            _("%(n)d %% of what is held") % {"n": of_held} if of_held is not None else _("not measured yet"),
            "activity", cluster,
        ),
        Tile(
            pgettext("devices", "Held, not used"), None if idle is None else f"{idle.quantize(Decimal('0.01'))}",
            _("%(currency)s an hour") % {"currency": currency()},
            _("%(n)s devices") % {"n": _figure(last.idle)} if last else _("not measured yet"),
            "hourglass", reverse("web:idle"),
        ),
        Tile(
            _("Wait, P50 / P90"), waits.text, "",
            " · ".join([
                ngettext("one start in 24 h", "%(n)d starts in 24 h", waits.count) % {"n": waits.count},
                ngettext("one waiting", "%(n)d waiting", waiting) % {"n": waiting},
            ]),
            "clock", requests,
        ),
    ]  # fmt: skip
