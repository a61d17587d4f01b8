"""Where months begin: at midnight in the organisation's time zone, as the database says."""

from __future__ import annotations

from datetime import UTC, date, datetime

from portal.common.sql import fetch

# By ``billing_month_start`` (billing 0013): the bound of a month that the books have already, else midnight in the
# zone that holds for the month. One place computes it, so that no two kinds of zone data can disagree.
_STARTS = """
SELECT m::date, billing_month_start(m::date)
  FROM generate_series(%s::date - interval '1 month', %s::date + interval '13 months', interval '1 month') m
"""


def next_month(first: date) -> date:
    """Return the first day of the month after that of ``first``."""
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)


class Months:
    """First instants of months, each year read once; one object for one answer, as a zone may be set later."""

    def __init__(self) -> None:
        self._starts: dict[date, datetime] = {}

    def start(self, first: date) -> datetime:
        """Return the first instant of the month that begins on the day ``first``."""
        if first not in self._starts:
            year = date(first.year, 1, 1)
            self._starts.update(fetch(_STARTS, [year, year]))
        return self._starts[first]

    def of(self, at: datetime) -> date:
        """Return the first day of the month that an instant lies in."""
        # Zones lie less than a day from UTC, so that it is the month of UTC or one beside it.
        first = at.astimezone(UTC).date().replace(day=1)
        if at < self.start(first):
            return date(first.year - (first.month == 1), (first.month - 2) % 12 + 1, 1)
        following = next_month(first)
        return following if at >= self.start(following) else first

    def bounds(self, at: datetime) -> tuple[datetime, datetime]:
        """Return the first instant of the month of ``at`` and of the next one."""
        first = self.of(at)
        return self.start(first), self.start(next_month(first))
