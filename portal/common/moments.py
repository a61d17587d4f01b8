"""Dates and times as people read them, in the zone and language in use: "22 Nov, 10:30"; another year is named.

``static/js/i18n.js`` writes the same in the browser.
"""

from __future__ import annotations

from datetime import date, datetime
from functools import lru_cache

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import get_language


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
