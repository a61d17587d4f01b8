"""Which month a page is about: ``2026-11`` in addresses, never one that the books do not have."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone

from portal.billing.models import BillingPeriod, PeriodState
from portal.billing.periods import period_named, period_of
from portal.common.errors import NotFound


def named(month: str) -> BillingPeriod:
    """Return the period of a month written ``2026-11``, or of the running one by ``this``.

    Raises NotFound for any other text or month.
    """
    found = period_of(timezone.now()) if month == "this" else period_named(month)
    if found is None:
        raise NotFound
    return found


def all_months(*, now: datetime) -> list[BillingPeriod]:
    """Return every month of the books, the present one first."""
    period_of(now)
    return list(BillingPeriod.objects.order_by("-starts_at"))


def is_closed(period: BillingPeriod) -> bool:
    """Say whether the month never changes again."""
    return period.state == PeriodState.CLOSED
