from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import connection

from portal.billing.models import BillingPeriod
from portal.common.sql import fetch

# The key of the lock under which a month closes. Whoever writes an event of a lease or a price holds it shared
# (the triggers of billing 0004 take it), so that a close sees all of them or they see the month closed.
BOOKS_LOCK = 0x626F6F6B73


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


def lock_books() -> None:
    """Keep events of leases and prices from being written until this transaction ends, those under way first.

    Call inside a transaction, before any row is locked: who writes an event may hold rows already.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [BOOKS_LOCK])


def hold_periods(starts: Iterable[datetime]) -> dict[datetime, BillingPeriod]:
    """Return the periods that begin at these instants, opened on first sight; none of them closes meanwhile.

    Call inside a transaction. A month that a close is working on is waited for and comes back closed.
    """
    wanted = sorted(set(starts))
    for start in wanted:
        period_of(start)
    fetch(
        "SELECT id FROM billing_billingperiod WHERE starts_at = ANY(%s) ORDER BY starts_at FOR SHARE",
        [wanted],
    )
    return {period.starts_at: period for period in BillingPeriod.objects.filter(starts_at__in=wanted)}
