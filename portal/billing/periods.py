from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.db import IntegrityError, connection, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.models import BillingPeriod, MonthZone, PeriodState
from portal.common.errors import Invalid
from portal.common.months import Months, next_month
from portal.common.retry import with_retries
from portal.common.sql import execute, fetch
from portal.common.zones import zone_named

# The key of the lock under which a month closes. Whoever writes an event of a lease or a price holds it shared
# (the triggers of billing 0004 take it), so that a close sees all of them or they see the month closed.
BOOKS_LOCK = 0x626F6F6B73
# The key of the lock under which another zone is set; whoever opens a period holds it shared (billing 0013).
ZONES_LOCK = 0x7A6F6E6573
_MONTH = re.compile(r"([1-9][0-9]{3})-(0[1-9]|1[0-2])")
_OPEN = """
INSERT INTO billing_billingperiod (month, starts_at, ends_at, zone, state)
VALUES (%s, billing_month_start(%s), billing_month_start(%s), billing_month_zone(%s), %s)
ON CONFLICT (month) DO NOTHING
"""
_LAST_USED = """
SELECT max(p.month) FROM billing_billingperiod p
 WHERE p.state <> %s OR EXISTS (SELECT FROM billing_usagetotal t WHERE p.id IN (t.period_id, t.late_for_id))
    OR EXISTS (SELECT FROM billing_invoice i WHERE i.period_id = p.id)
    OR EXISTS (SELECT FROM billing_invoicenote n WHERE n.period_id = p.id)
    OR EXISTS (SELECT FROM billing_financeimport f WHERE f.period_id = p.id)
    OR EXISTS (SELECT FROM billing_energytotal e WHERE e.period_id = p.id)
"""


def month_bounds(at: datetime) -> tuple[datetime, datetime]:
    """Return the first instant of the month of ``at`` and of the next one, in the organisation's zone."""
    return Months().bounds(at)


def period_of(at: datetime) -> BillingPeriod:
    """Return the billing period of an instant, opened on first sight. Safe to repeat."""
    found = BillingPeriod.objects.filter(starts_at__lte=at, ends_at__gt=at).first()
    return found or open_period(Months().of(at))


def period_named(month: str) -> BillingPeriod | None:
    """Return the period of a month written ``2026-11``, None for other text or where the books have none."""
    match = _MONTH.fullmatch(month)
    first = date(int(match[1]), int(match[2]), 1) if match else None
    return BillingPeriod.objects.filter(month=first).first() if first else None


@transaction.atomic
def open_period(first: date) -> BillingPeriod:
    """Return the period of the month that begins on a day, opened on first sight. Safe to repeat."""
    # So that nobody sets another zone between reading the month's bounds and writing them.
    execute("SELECT pg_advisory_xact_lock_shared(%s)", [ZONES_LOCK])
    execute(_OPEN, [first, first, next_month(first), first, PeriodState.OPEN])
    return BillingPeriod.objects.get(month=first)


def day_starts(period: BillingPeriod) -> list[datetime]:
    """Return the first instant of each day of a month, then the month's end.

    A day is 23 or 25 hours long where clocks change. Of the first month in another zone the first day begins where the
    month does.
    """
    zone, days = ZoneInfo(period.zone), (next_month(period.month) - period.month).days
    midnights = (
        datetime.combine(period.month + timedelta(days=n), time(), tzinfo=zone).astimezone(UTC)
        for n in range(1, days)
    )
    inside = [min(max(at, period.starts_at), period.ends_at) for at in midnights]
    return [period.starts_at, *inside, period.ends_at]


def by_day(
    period: BillingPeriod, starts: Sequence[datetime], since: datetime, until: datetime
) -> Iterator[tuple[date, int]]:
    """Yield the days of a stretch of a month with its whole seconds on each; ``starts`` are the ``day_starts``."""
    for number in range(max(bisect_right(starts, since) - 1, 0), len(starts) - 1):
        if starts[number] >= until:
            return
        seconds = int((min(until, starts[number + 1]) - max(since, starts[number])).total_seconds())
        if seconds > 0:
            yield period.month + timedelta(days=number), seconds


def zone_at(first: date) -> str:
    """Return the name of the zone that a month is in."""
    return str(fetch("SELECT billing_month_zone(%s)", [first])[0][0])


@dataclass(frozen=True, slots=True)
class MonthZones:
    """In which zone the running month is, since when (None: always), and what was set for a later month (or None).

    ``earliest`` is the first month for which another zone can be set: nobody has used it or a later one yet.
    """

    zone: str
    since: date | None
    planned: MonthZone | None
    earliest: date


def month_zones(*, now: datetime) -> MonthZones:
    """Return in which zone months begin, and from which month on that can change."""
    running = Months().of(now)
    rows = list(MonthZone.objects.order_by("since"))
    begun = [row for row in rows if row.since <= running]
    ahead = [row for row in rows if row.since > running]
    current = begun[-1] if begun else None
    return MonthZones(
        current.name if current else "UTC",
        current.since if current else None,
        ahead[0] if ahead else None,
        _earliest(running),
    )


def _earliest(running: date) -> date:
    """Return the first month from the running one on that nobody has used."""
    used = fetch(_LAST_USED, [PeriodState.OPEN])[0][0]
    return running if used is None else max(running, next_month(used))


def set_month_zone(*, zone: str, since: date | None, actor: User | None, now: datetime) -> MonthZones:
    """Let months begin at midnight in a zone, from the month ``since`` on (None: from the first that can change).

    What was set for a later month is taken back. Raises Invalid naming the field; nobody may have used the month yet.
    """
    return with_retries(lambda: _set_month_zone(zone, since, actor, now))


@transaction.atomic
def _set_month_zone(zone: str, since: date | None, actor: User | None, now: datetime) -> MonthZones:
    if zone_named(zone) is None:
        raise Invalid(
            fields={
                "zone": _("There is no such time zone. Choose one such as Europe/Berlin or Asia/Shanghai.")
            }
        )
    execute("SELECT pg_advisory_xact_lock(%s)", [ZONES_LOCK])
    running = Months().of(now)
    earliest = _earliest(running)
    first = since or earliest
    if first.day != 1 or not earliest <= first <= date(earliest.year + 1, earliest.month, 1):
        raise Invalid(
            fields={
                "since": _("Choose a month from %(month)s on, at most a year ahead: earlier ones are in use.")
                % {"month": f"{earliest:%Y-%m}"}
            }
        )
    was = zone_at(first)
    # Opened by somebody's look at a page, and used by nobody: they are opened anew in their zone.
    BillingPeriod.objects.filter(month__gte=first).delete()
    MonthZone.objects.filter(since__gte=first).delete()
    if zone_at(first) != zone:
        try:
            with transaction.atomic():
                MonthZone.objects.create(since=first, name=zone, set_at=now)
        except IntegrityError as error:
            raise Invalid(
                fields={"zone": _("The database does not know this time zone: choose another one.")}
            ) from error
    record(actor, "months.zone_set", zone, at=now, was=was, month=f"{first:%Y-%m}")
    return month_zones(now=now)


def lock_books() -> None:
    """Keep events of leases and prices from being written until this transaction ends, those under way first.

    Call inside a transaction, before any row is locked: who writes an event may hold rows already.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [BOOKS_LOCK])


def hold_books() -> None:
    """Keep any month from closing until this transaction ends; a close that is under way is waited for.

    Call inside a transaction, before any row is locked. What is read afterwards has what that close has written.
    """
    execute("SELECT pg_advisory_xact_lock_shared(%s)", [BOOKS_LOCK])


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
