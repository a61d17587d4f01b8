"""The next 24 hours of the fleet as a strip: what ends, what begins, what goes into maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.sql import fetch, in_sql
from portal.leases.states import RUNNING_LEASES, LeaseState
from portal.web.charts import HourStrip, StripCell, StripRow, clock
from portal.web.figures import gpus

HOURS = 24
HOUR = timedelta(hours=1)
MOST_WINDOWS = 4
# Thousandths of a device by hour from now: those of running leases that end then, those of bookings that begin.
_LEASES = f"""
SELECT kind, floor(extract(epoch FROM at - %(begin)s) / 3600)::int AS hour, sum(share_milli), count(*) FROM (
  SELECT 'end' AS kind, not_after AS at, share_milli FROM leases_lease
   WHERE state IN {in_sql(RUNNING_LEASES)} AND not_after >= %(begin)s AND not_after < %(until)s
  UNION ALL
  SELECT 'begin', starts_at, share_milli FROM leases_lease
   WHERE state = '{LeaseState.BOOKED}' AND starts_at >= %(begin)s AND starts_at < %(until)s) AS events
 GROUP BY 1, 2
"""  # noqa: S608 (our own states)
# A drain is a maintenance without an end.
_WINDOWS = """
SELECT w.starts_at, w.ends_at, w.uid, w.reason, count(DISTINCT d.id), string_agg(DISTINCT n.name, ', ')
  FROM fleet_maintenancewindow w JOIN fleet_maintenancewindow_nodes m ON m.maintenancewindow_id = w.id
  JOIN fleet_node n ON n.id = m.node_id JOIN fleet_device d ON d.node_id = n.id
 WHERE w.cancelled_at IS NULL AND w.starts_at < %(until)s AND w.ends_at > %(begin)s GROUP BY w.id
UNION ALL
SELECT n.drain_by, NULL, '', n.cordon_reason, count(d.id), n.name
  FROM fleet_node n JOIN fleet_device d ON d.node_id = n.id
 WHERE n.drain_by < %(until)s GROUP BY n.id ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class ComingWindow:
    """A maintenance window or a drain that falls into the next hours; ``ends_at`` None is a drain."""

    starts_at: datetime
    ends_at: datetime | None
    text: str
    reason: str
    url: str


@dataclass(frozen=True, slots=True)
class ComingHours:
    """What the next hours bring."""

    strip: HourStrip
    windows: list[ComingWindow]
    is_quiet: bool


def heads_of(begin: datetime, hours: int, every: int = 3) -> list[str]:
    """Return the hour over each column, only every third one written out."""
    return [clock(begin + n * HOUR) if n % every == 0 else "" for n in range(hours)]


def level_of(value: int, most: int) -> int:
    """Return how dark a cell is: 0 for nothing, else 1 to 4 by its part of the most."""
    return 0 if value <= 0 else min(4, 1 + 3 * value // max(most, 1))


def coming_hours(*, now: datetime) -> ComingHours:
    """Return the next 24 hours in two queries."""
    begin = now.replace(minute=0, second=0, microsecond=0)
    values = {"begin": begin, "until": begin + HOURS * HOUR}
    found: dict[tuple[str, int], tuple[int, int]] = {
        (kind, hour): (int(milli), int(count)) for kind, hour, milli, count in fetch(_LEASES, values)
    }
    windows = fetch(_WINDOWS, values)
    away = [0] * HOURS
    for starts_at, ends_at, _uid, _reason, devices, _names in windows:
        for n in range(HOURS):
            if starts_at < begin + (n + 1) * HOUR and (ends_at is None or ends_at > begin + n * HOUR):
                away[n] += int(devices) * 1000
    labels = [clock(begin + n * HOUR) for n in range(HOURS)]
    rows = [
        _row(_("Leases end"), [found.get(("end", n), (0, 0)) for n in range(HOURS)], labels),
        _row(_("Bookings begin"), [found.get(("begin", n), (0, 0)) for n in range(HOURS)], labels),
        _row(_("In maintenance"), [(milli, 0) for milli in away], labels, kind="away"),
    ]
    caption = _("Devices by hour; slices count by their share")
    return ComingHours(
        HourStrip(heads_of(begin, HOURS), rows, caption),
        [_window(row) for row in windows[:MOST_WINDOWS]],
        is_quiet=not found and not windows,
    )


def _row(label: str, values: Sequence[tuple[int, int]], labels: Sequence[str], kind: str = "") -> StripRow:
    most = max((milli for milli, _count in values), default=0)
    cells = []
    for (milli, count), hour in zip(values, labels, strict=True):
        text = (gpus(milli) if milli < 10_000 else str(round(milli / 1000))) or ""
        title = _("%(hour)s: %(n)s devices") % {"hour": hour, "n": gpus(milli)}
        if count:
            title += " · " + ngettext("one lease", "%(n)d leases", count) % {"n": count}
        cells.append(
            StripCell(_short(text) if milli else "", level_of(milli, most), title, kind if milli else "")
        )
    return StripRow(label, cells)


def _short(text: str) -> str:
    """Return a number that fits a narrow cell: "0.125" as "0.1"."""
    return f"{float(text):.1f}".removesuffix(".0") if "." in text else text


def _window(row: tuple[datetime, datetime | None, str, str, int, str]) -> ComingWindow:
    starts_at, ends_at, uid, reason, devices, names = row
    what = ngettext("one device", "%(n)d devices", devices) % {"n": devices}
    url = reverse("web:window", args=[uid]) if uid else reverse("web:node", args=[names])
    word = _("Maintenance of %(nodes)s, %(what)s") if uid else _("Drain of %(nodes)s, %(what)s")
    return ComingWindow(starts_at, ends_at, word % {"nodes": names, "what": what}, reason, url)
