from __future__ import annotations

from datetime import UTC, datetime

from portal.billing.models import BillingPeriod


def month_bounds(at: datetime) -> tuple[datetime, datetime]:
    """Return the first instant of the month of ``at`` and of the next one, in UTC."""
    start = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (
        start.replace(year=start.year + 1, month=1)
        if start.month == 12
        else start.replace(month=start.month + 1)
    )
    return start, end


def period_of(at: datetime) -> BillingPeriod:
    """Return the billing period of an instant, opened on first sight. Safe to repeat."""
    start, end = month_bounds(at)
    period, _created = BillingPeriod.objects.get_or_create(starts_at=start, defaults={"ends_at": end})
    return period
