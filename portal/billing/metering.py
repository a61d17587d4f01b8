"""Lease events to usage records: whole seconds, cut at month ends and price changes, never twice.

An interval runs from an event into ``active`` to the next event out of it; both instants are
floored to their second, so intervals tile exactly. Only pieces that can no longer change are
written (``portal.billing.settled``): the others are shown as accruing and written when they are final.
A piece whose month was closed meanwhile becomes an adjustment in the running month.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from django.db import IntegrityError, transaction
from psycopg.types.range import TimestamptzRange

from portal.billing.models import BillingPeriod, PeriodState, RefundRule, UsageRecord
from portal.billing.periods import hold_periods, month_bounds
from portal.billing.refunds import Refund, refunded_price, refunds_of
from portal.billing.settled import settled_until
from portal.catalog.models import Rate
from portal.catalog.pricing import RateInterval, cut, cut_known, lowered
from portal.common.clock import whole_second
from portal.common.failpoints import failpoint
from portal.common.retry import with_retries
from portal.common.rows import Rows
from portal.leases.models import Lease, LeaseEvent
from portal.leases.states import LeaseState

log = logging.getLogger(__name__)
BATCH = 500
_EVENTS, _RATES = Rows(LeaseEvent), Rows(Rate, "card")
STILL_RUNNING = (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED, LeaseState.BOOKED)


@dataclass(frozen=True, slots=True)
class Interval:
    """Active time of a lease in whole seconds; ``ends_at`` None while it runs."""

    starts_at: datetime
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an interval inside one month and under one rate; ``is_final`` when it cannot grow any more.

    ``refund`` is the rule by which it is charged in part or not at all.
    """

    stretch: RateInterval
    is_final: bool
    refund: RefundRule | None = None

    def price(self, lease: Lease) -> int:
        """Return what the lease pays of the hourly price of a whole device, in micro-units."""
        return refunded_price(lowered(self.stretch.rate.micro_per_hour, lease.price_milli), self.refund)


def active_intervals(events: Iterable[LeaseEvent]) -> list[Interval]:
    """Return the active intervals that events in time order describe."""
    found: list[Interval] = []
    since: datetime | None = None
    for event in events:
        if event.now == LeaseState.ACTIVE and since is None:
            since = whole_second(event.at)
        elif event.was == LeaseState.ACTIVE and since is not None:
            found.append(Interval(since, whole_second(event.at)))
            since = None
    if since is not None:
        found.append(Interval(since, None))
    return [i for i in found if i.ends_at is None or i.ends_at > i.starts_at]


def pieces(
    intervals: Sequence[Interval],
    rates: Sequence[Rate],
    *,
    now: datetime,
    settled: datetime | None = None,
    is_strict: bool = True,
) -> list[Piece]:
    """Cut intervals at month ends and rate changes up to ``now``.

    ``settled`` is the instant before which no event of the lease can come: a piece of an interval that still runs
    is final when it lies before it; without it none is. Raises Conflict where no rate is in force, or ends the
    pieces there when not strict: what follows is cut once the price is known.
    """
    found: list[Piece] = []
    for interval in intervals:
        end = interval.ends_at or whole_second(now)
        at = interval.starts_at
        while at < end:
            until = min(end, month_bounds(at)[1])
            for stretch in cut(rates, at, until) if is_strict else cut_known(rates, at, until):
                is_whole = stretch.ends_at < end or until == month_bounds(at)[1]
                is_final = interval.ends_at is not None or (
                    is_whole and settled is not None and stretch.ends_at <= settled
                )
                found.append(Piece(stretch, is_final))
                at = stretch.ends_at
            if at < until:
                return found
    return found


def refunded(parts: Sequence[Piece], refund: Refund | None) -> list[Piece]:
    """Return pieces with a refund on what lies after it begins, cut there."""
    if refund is None:
        return list(parts)
    found = []
    for part in parts:
        stretch, since = part.stretch, refund.since
        if stretch.starts_at < since < stretch.ends_at:
            found.append(Piece(RateInterval(stretch.rate, stretch.starts_at, since), part.is_final))
            stretch = RateInterval(stretch.rate, since, stretch.ends_at)
        found.append(Piece(stretch, part.is_final, refund.rule if stretch.starts_at >= since else None))
    return found


def events_by_lease(leases: Sequence[Lease]) -> dict[int, list[LeaseEvent]]:
    """Return each lease's events in time order, in one query."""
    found: dict[int, list[LeaseEvent]] = defaultdict(list)
    for event in _EVENTS.where("it.lease_id = ANY(%s) ORDER BY it.at, it.id", [[ls.pk for ls in leases]]):
        found[event.lease_id].append(event)
    return found


def rates_by_model(model_ids: Iterable[int]) -> dict[int, list[Rate]]:
    """Return the default card's rates of device models, sorted by time, in one query."""
    found: dict[int, list[Rate]] = defaultdict(list)
    wanted = '"card".is_default AND it.device_model_id = ANY(%s) ORDER BY it.valid'
    for rate in _RATES.where(wanted, [sorted(set(model_ids))]):
        found[rate.device_model_id].append(rate)
    return found


def meter_all(*, now: datetime) -> int:
    """Write the usage records that are due; returns how many. Safe to repeat and to run in parallel."""
    written, after = 0, 0
    while True:
        batch = with_retries(lambda after=after: _meter_batch(after, now))  # type: ignore[misc]
        if batch is None:
            return written
        failpoint("meter.batch_done")
        written, after = written + batch[0], batch[1]


@transaction.atomic
def _meter_batch(after: int, now: datetime) -> tuple[int, int] | None:
    """Meter the next leases above id ``after``; returns (records written, last id) or None when done.

    Locks leases, then periods. Leases that somebody holds are passed over: they stay unmetered, the next round
    takes them, and no month closes without them.
    """
    leases = list(
        Lease.objects.select_for_update(of=("self",), skip_locked=True)
        .filter(is_metered=False, activated_at__isnull=False, pk__gt=after)
        .select_related("flavor")
        .order_by("id")[:BATCH]
    )
    if not leases:
        Lease.objects.filter(is_metered=False, activated_at=None, state=LeaseState.ENDED).update(
            is_metered=True
        )
        return None
    events = events_by_lease(leases)
    rates = rates_by_model(ls.flavor.device_model_id for ls in leases)
    refunds = refunds_of(leases, events)
    stored: dict[int, list[UsageRecord]] = defaultdict(list)
    for usage in UsageRecord.objects.filter(lease__in=[ls.pk for ls in leases]).select_related(
        "period", "refund"
    ):
        stored[usage.lease_id].append(usage)
    settled = settled_until([ls.pk for ls in leases], now=now)
    due: list[tuple[Lease, Piece]] = []
    finished: list[int] = []
    outdated: list[UsageRecord] = []
    for lease in leases:
        intervals = active_intervals(events[lease.pk])
        found = pieces(
            intervals,
            rates[lease.flavor.device_model_id],
            now=now,
            settled=settled.get(lease.pk),
            is_strict=False,
        )
        found = refunded(found, refunds.get(lease.pk))
        unwritten, wrong = _against_books(lease, found, stored[lease.pk], is_refunded=lease.pk in refunds)
        due += [(lease, part) for part in unwritten]
        outdated += wrong
        if lease.state not in STILL_RUNNING:
            ran_s = sum(
                int((i.ends_at - i.starts_at).total_seconds()) for i in intervals if i.ends_at is not None
            )
            if sum(p.stretch.seconds for p in found) == ran_s:
                finished.append(lease.pk)
            else:
                log.error("lease %s is not metered to its end: no price was in force", lease.uid)
    if outdated:
        hold_periods({usage.period.starts_at for usage in outdated})
        UsageRecord.objects.filter(pk__in=[usage.pk for usage in outdated]).delete()
    records = _records(due, now)
    refused = _store(records)
    Lease.objects.filter(pk__in=set(finished) - refused).update(is_metered=True)
    if records:
        failpoint("meter.before_commit")
    return sum(record.lease_id not in refused for record in records), leases[-1].pk


def _against_books(
    lease: Lease, found: Sequence[Piece], stored: Sequence[UsageRecord], *, is_refunded: bool
) -> tuple[list[Piece], list[UsageRecord]]:
    """Return the pieces of a lease that no record has yet, and the records that a refund makes wrong.

    A rule refunds also what was written before it was known how the lease ends, in months that are open.
    """
    stays, wrong = list(stored), list[UsageRecord]()
    if is_refunded:
        wanted = {(p.stretch.starts_at, p.stretch.ends_at, p.price(lease), p.refund) for p in found}
        stays = [u for u in stored if u.period.state == PeriodState.CLOSED or _key(u) in wanted]
        wrong = [u for u in stored if u not in stays]
    known = {u.span.lower for u in stays}
    unwritten = [
        p
        for p in found
        if p.is_final
        and p.stretch.starts_at not in known
        and not (p.refund and any(u.span.lower <= p.stretch.starts_at < u.span.upper for u in stays))
    ]
    return unwritten, wrong


def _store(records: Sequence[UsageRecord]) -> set[int]:
    """Write usage records and return the leases of which the database refuses them, usually none.

    One lease with usage of old that stands in the way keeps its month open, and must not keep others unmetered.
    """
    try:
        with transaction.atomic():
            UsageRecord.objects.bulk_create(records)
        return set()
    except IntegrityError:
        log.warning("usage is refused by the database: it is written lease by lease")
    refused: set[int] = set()
    for lease_id, own in groupby(records, key=attrgetter("lease_id")):
        try:
            with transaction.atomic():
                UsageRecord.objects.bulk_create(own)
        except IntegrityError:
            log.exception("usage of the lease with id %s is refused by the database", lease_id)
            refused.add(lease_id)
    return refused


def _key(usage: UsageRecord) -> tuple[datetime, datetime, int, RefundRule | None]:
    return (usage.span.lower, usage.span.upper, usage.micro_per_hour, usage.refund)


def _records(due: Sequence[tuple[Lease, Piece]], now: datetime) -> list[UsageRecord]:
    """Return the usage records of these pieces: each in its own month, or an adjustment where that is closed."""
    if not due:
        return []
    running = month_bounds(now)[0]
    periods = hold_periods([running, *(month_bounds(part.stretch.starts_at)[0] for _lease, part in due)])
    found = []
    for lease, part in due:
        own = periods[month_bounds(part.stretch.starts_at)[0]]
        if own.state == PeriodState.CLOSED:
            log.warning("usage of lease %s is late for %s: it is adjusted", lease.uid, own)
            found.append(_record(lease, part, periods[running], now, late_for=own))
        else:
            found.append(_record(lease, part, own, now))
    return found


def _record(
    lease: Lease,
    part: Piece,
    period: BillingPeriod,
    now: datetime,
    late_for: BillingPeriod | None = None,
) -> UsageRecord:
    stretch = part.stretch
    return UsageRecord(
        lease=lease,
        team_id=lease.team_id,
        period=period,
        late_for=late_for,
        rate=stretch.rate,
        span=TimestamptzRange(stretch.starts_at, stretch.ends_at),
        seconds=stretch.seconds,
        share_milli=lease.share_milli,
        share_milli_seconds=stretch.seconds * lease.share_milli,
        micro_per_hour=part.price(lease),
        refund=part.refund,
        currency=stretch.rate.card.currency,
        recorded_at=now,
    )
