"""Months and their zones for tests: computed by Python's zone data, beside what the database computes by its own."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo

from portal.billing.models import BillingPeriod, MonthZone
from portal.common.months import Months


class ZoneMonths(Months):
    """Months of one zone without a database: each begins where clocks first show its first day."""

    def __init__(self, zone: str) -> None:
        """Take a zone by its name."""
        super().__init__()
        self._zone = ZoneInfo(zone)

    def start(self, first: date) -> datetime:
        """Return the first instant of a month: the first midnight of two, the change of clocks for a skipped one."""
        return datetime.combine(first, time(), tzinfo=self._zone).astimezone(UTC)


def lay_down(zone: str) -> None:
    """Let all months be in a zone, on books without any month that somebody has used."""
    BillingPeriod.objects.all().delete()
    if zone != "UTC":
        MonthZone.objects.create(since=date(2000, 1, 1), name=zone, set_at=datetime(2000, 1, 1, tzinfo=UTC))
