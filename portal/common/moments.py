"""Times and lengths of time as people read them, in the zone and language in use: "22 Nov, 10:30", "1 d 6 h".

Another year is named. ``static/js/i18n.js`` writes the same in the browser.
"""

from __future__ import annotations

from datetime import date, datetime
from functools import lru_cache

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.common.units import span_parts


def moment(at: datetime, *, now: datetime | None = None) -> str:
    """Return an instant to the minute; the year only where it is not this one."""
    local = timezone.localtime(at)
    is_this_year = local.year == timezone.localtime(now or timezone.now()).year
    return _written(local.replace(second=0, microsecond=0, tzinfo=None), get_language(), is_this_year)


# A page writes the same minutes again and again, and Django's formatting of one takes as long as a short query.
@lru_cache(maxsize=8192)
def _written(local: datetime, _language: str | None, is_this_year: bool) -> str:
    return date_format(local, "MOMENT_FORMAT" if is_this_year else "DATETIME_FORMAT")


def moment_of(text: object) -> str | None:
    """Return an instant written in ISO 8601 as people read it; None for other text."""
    try:
        return moment(datetime.fromisoformat(str(text)))
    except (ValueError, OverflowError):
        return None


def month(first: date) -> str:
    """Return the billing month that begins on a day, such as "November 2026"."""
    return date_format(first, "YEAR_MONTH_FORMAT")


def span(seconds: int | None) -> str | None:
    """Return a length of time by its two largest units: "1 d 6 h", "90 s" as "1 min 30 s"."""
    if seconds is None:
        return None
    words = {"d": _("%(n)d d"), "h": _("%(n)d h"), "min": _("%(n)d min"), "s": _("%(n)d s")}
    return " ".join(words[unit] % {"n": n} for n, unit in span_parts(seconds))
