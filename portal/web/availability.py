"""When which size is free, as a strip of hours: on the home of those who ask and beside the request form."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.accounts.models import User
from portal.common.sql import fetch
from portal.leases.availability import Availability, FlavorHours, availability
from portal.web.charts import HourStrip, StripCell, StripRow, clock

STEPS = 24
LAST_ASKED = 50
# Flavors by how often this person asked for them lately, with the usual number of units.
_USUAL = """
SELECT flavor_id, mode() WITHIN GROUP (ORDER BY count), count(*) FROM (
  SELECT id, flavor_id, count FROM leases_leaserequest WHERE author_id = %s ORDER BY id DESC LIMIT %s) AS lately
 GROUP BY flavor_id ORDER BY 3 DESC, max(id) DESC
"""


def usual_sizes(user: User) -> dict[int, int]:
    """Return the flavors that this person asks for, the most usual first, with how many units; one query."""
    return {int(flavor): int(units) for flavor, units, _n in fetch(_USUAL, [user.pk, LAST_ASKED])}


def strip(
    usual: dict[int, int],
    *,
    most: int | None = None,
    step_h: int = 1,
    now: datetime,
    seen: Availability | None = None,
) -> tuple[HourStrip, str]:
    """Return the strip, one's usual sizes first, and one sentence about the most usual one ("" without one).

    ``most`` rows at most; ``seen`` is what was looked up already. An hour of which nothing is known is dotted and has
    no number.
    """
    seen = seen or availability(steps=STEPS, step_h=step_h, now=now)
    order = {flavor: number for number, flavor in enumerate(usual)}
    rows = sorted(seen.rows, key=lambda row: (order.get(row.flavor.pk, len(order)), row.flavor.position))[
        :most
    ]
    shown = [_row(row, seen, usual) for row in rows]
    heads = [_head(at, step_h) if n % 3 == 0 else "" for n, at in enumerate(seen.starts)]
    first = next((row for row in rows if usual and row.flavor.pk == next(iter(usual))), None)
    caption = _("Units that can be booked, by hour; promised starts count as taken, quota does not")
    return HourStrip(heads, shown, caption), _when(first, seen, usual) if first else ""


def _head(at: datetime, step_h: int) -> str:
    return clock(at) if step_h == 1 else date_format(timezone.localtime(at), "D H:i")


def _row(row: FlavorHours, seen: Availability, usual: dict[int, int]) -> StripRow:
    most = max((free for free in row.free if free), default=0)
    cells = []
    for at, free in zip(seen.starts, row.free, strict=True):
        hours = f"{_head(at, seen.step_h)}–{clock(at + timedelta(hours=seen.step_h))}"
        if free is None:
            cells.append(StripCell("", 0, _("%(hours)s: unknown") % {"hours": hours}, "unknown"))
            continue
        title = ngettext("%(hours)s: %(n)d free", "%(hours)s: %(n)d free", free) % {"hours": hours, "n": free}
        cells.append(StripCell(str(free), free_level(free, most), title))
    address = f"{reverse('web:request_new')}?flavor={row.flavor.slug}"
    is_own = bool(usual) and row.flavor.pk == next(iter(usual))
    return StripRow(row.flavor.shown_name, cells, url=address, is_own=is_own)


def free_level(free: int, most: int) -> int:
    """Return how dark a cell is: one, few and many free units look apart, none is empty."""
    return 0 if not free else 1 if free == 1 else min(4, 2 + 2 * free // max(most, 4))


def _when(row: FlavorHours, seen: Availability, usual: dict[int, int]) -> str:
    """Return when the usual size is free, in one sentence."""
    if not seen.is_known:
        return _("When your usual size is free is unknown: the scheduler has not published its picture.")
    units = usual[row.flavor.pk]
    what = row.flavor.shown_name if units == 1 else f"{units} × {row.flavor.shown_name}"
    at = row.first(units)
    if at is None:
        return _("Your usual size, %(what)s, is not free in these hours.") % {"what": what}
    if at == 0:
        return _("Your usual size, %(what)s, is free now.") % {"what": what}
    return _("Your usual size, %(what)s, is free from %(at)s.") % {
        "what": what, "at": _head(seen.starts[at], seen.step_h),
    }  # fmt: skip
