"""Which month a page is about: ``2026-11`` in addresses, never one that the books do not have."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from portal.billing.models import BillingPeriod, PeriodState
from portal.billing.selectors import period_of
from portal.common.errors import NotFound

_MONTH = re.compile(r"([1-9][0-9]{3})-(0[1-9]|1[0-2])")


def named(month: str) -> BillingPeriod:
    """Return the period of a month written ``2026-11``; raises NotFound for any other text or month."""
    match = _MONTH.fullmatch(month)
    found = None
    if match:
        start = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
        found = BillingPeriod.objects.filter(starts_at=start).first()
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
