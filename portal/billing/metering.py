"""Lease events to usage records: whole seconds, cut at month ends, prices and discounts, never twice.

An interval runs from an event into ``active`` to the next event out of it; both instants are
floored to their second, so intervals tile exactly. Only pieces that can no longer change are
written (``portal.billing.settled``): the others are shown as accruing and written when they are final.
A piece whose month was closed meanwhile becomes an adjustment in the running month.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from django.db import IntegrityError, transaction

from portal.billing.labels import kept_labels, labels_of
from portal.billing.models import BillingPeriod, PeriodState, RefundCause, RefundRule, UsageRecord
from portal.billing.periods import hold_periods
from portal.billing.refunds import OVER, Refund, cause_of, refunded_price, refunds_of
from portal.billing.settled import settled_until
from portal.catalog.discounts import DiscountSpan, DiscountWanted, discounts_over
from portal.catalog.models import Rate
from portal.catalog.pricing import SHARE_HOUR, RateInterval, cut, cut_known, discounted
from portal.common.clock import whole_second
from portal.common.failpoints import failpoint
from portal.common.months import Months
from portal.common.retry import with_retries
from portal.common.rows import Rows
from portal.common.sql import execute
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

    ``refund`` is the rule by which it is charged in part or not at all. ``minimum_micro`` is what its lease is raised
    to, at ``raised_to`` for an hour of a whole device.
    """

    stretch: RateInterval
    is_final: bool
    refund: RefundRule | None = None
    minimum_micro: int | None = None
    raised_to: int = 0

    def price(self, lease: Lease) -> int:
        """Return what the lease pays of the hourly price of a whole device, in micro-units."""
        if self.minimum_micro is not None:
            return self.raised_to
        return refunded_price(self.stretch.price(lease.flavor, lease.price_milli), self.refund)


class DueUsage(NamedTuple):
    """A piece to be written: the month that bills it and, where its own is closed, that one as ``late_for``.

    ``label`` is the id of what it is filed under, None for nothing.
    """

    lease: Lease
    part: Piece
    month: BillingPeriod
    late_for: BillingPeriod | None
    label: int | None = None


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
    months: Months,
    now: datetime,
    settled: datetime | None = None,
    is_strict: bool = True,
    spans: Sequence[DiscountSpan] = (),
) -> list[Piece]:
    """Cut intervals at month ends, rate changes and where discounts begin and end (``spans``) up to ``now``.

    ``settled`` is the instant before which no event of the lease can come: a piece of an interval that still runs
    is final when it lies before it; without it none is. Raises Conflict where no rate is in force, or ends the
    pieces there when not strict: what follows is cut once the price is known.
    """
    found: list[Piece] = []
    for interval in intervals:
        end = interval.ends_at or whole_second(now)
        at = interval.starts_at
        while at < end:
            month_ends = months.bounds(at)[1]
            until = min(end, month_ends)
            priced = cut(rates, at, until) if is_strict else cut_known(rates, at, until)
            for stretch in discounted(priced, spans):
                is_whole = stretch.ends_at < end or until == month_ends
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
            found.append(Piece(replace(stretch, ends_at=since), part.is_final))
            stretch = replace(stretch, starts_at=since)
        found.append(Piece(stretch, part.is_final, refund.rule if stretch.starts_at >= since else None))
    return found


def minimum_of(lease: Lease, parts: Sequence[Piece], events: Sequence[LeaseEvent]) -> int:
    """Return what a lease comes to at least, in micro-units, 0 for no minimum: that of the rate under which it began.

    None before it is over, where it ended by anything but its own end or release, and where a rule refunds it.
    """
    if not parts or not parts[0].stretch.rate.minimum_micro or any(part.refund for part in parts):
        return 0
    return parts[0].stretch.rate.minimum_micro if pays_minimum(lease, events) else 0


def pays_minimum(lease: Lease, events: Sequence[LeaseEvent]) -> bool:
    """Say whether a lease is over and ended by its own end, its release or its holder's doing, by its events."""
    return lease.state in OVER and cause_of(lease, events) in (None, RefundCause.EARLY_RELEASE)


def at_minimum(
    lease: Lease, parts: Sequence[Piece], minimum_micro: int, closed: Sequence[UsageRecord]
) -> list[Piece]:
    """Return pieces at the one price at which the lease comes to its minimum; as they are where it costs as much.

    ``closed`` is its usage in closed months, which stays: the pieces that it does not hold make up for the rest. What
    costs nothing stays free.
    """
    written = Fraction(sum(u.share_milli_seconds * u.micro_per_hour for u in closed))
    is_open = [not any(u.span.lower <= p.stretch.starts_at < u.span.upper for u in closed) for p in parts]
    quantity = sum(
        lease.share_milli * p.stretch.seconds for p, opened in zip(parts, is_open, strict=True) if opened
    )
    exact = written + sum(
        lease.share_milli * p.stretch.seconds * p.price(lease)
        for p, opened in zip(parts, is_open, strict=True)
        if opened
    )
    if not quantity or not 0 < exact < minimum_micro * SHARE_HOUR:
        return list(parts)
    price = math.ceil((minimum_micro * SHARE_HOUR - written) / quantity)
    return [
        replace(p, minimum_micro=minimum_micro, raised_to=price) if opened else p
        for p, opened in zip(parts, is_open, strict=True)
    ]


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


def discounts_of(
    leases: Sequence[Lease], events: Mapping[int, Sequence[LeaseEvent]], *, now: datetime
) -> dict[int, list[DiscountSpan]]:
    """Return by lease the discounts of its time up to ``now``. Call after its events were read.

    A rule begins in the future, so whatever these events lie before is known by then.
    """
    lived = [lease for lease in leases if events[lease.pk]]
    wanted = [
        DiscountWanted(
            lease.team_id,
            lease.is_preemptible,
            whole_second(events[lease.pk][0].at),
            whole_second(max(now, events[lease.pk][-1].at)) + timedelta(seconds=1),
        )
        for lease in lived
    ]
    found = discounts_over(wanted)
    return defaultdict(list, {lease.pk: spans for lease, spans in zip(lived, found, strict=True)})


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
    discounts, refunds = discounts_of(leases, events, now=now), refunds_of(leases, events)
    stored: dict[int, list[UsageRecord]] = defaultdict(list)
    for usage in UsageRecord.objects.filter(lease__in=[ls.pk for ls in leases]).select_related(
        "period", "refund"
    ):
        stored[usage.lease_id].append(usage)
    settled, months = settled_until([ls.pk for ls in leases], now=now), Months()
    due: list[tuple[Lease, Piece]] = []
    finished: list[int] = []
    outdated: list[UsageRecord] = []
    for lease in leases:
        intervals = active_intervals(events[lease.pk])
        found = pieces(
            intervals,
            rates[lease.flavor.device_model_id],
            months=months,
            now=now,
            settled=settled.get(lease.pk),
            is_strict=False,
            spans=discounts[lease.pk],
        )
        found = refunded(found, refunds.get(lease.pk))
        least = minimum_of(lease, found, events[lease.pk])
        if least:
            closed = [u for u in stored[lease.pk] if u.period.state == PeriodState.CLOSED]
            found = at_minimum(lease, found, least, closed)
        unwritten, wrong = _against_books(
            lease, found, stored[lease.pk], is_repriced=lease.pk in refunds or bool(least)
        )
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
    billed = _filed(_due(due, months, now))
    refused = _store(billed, now)
    Lease.objects.filter(pk__in=set(finished) - refused).update(is_metered=True)
    if billed:
        failpoint("meter.before_commit")
    return sum(one.lease.pk not in refused for one in billed), leases[-1].pk


def _filed(due: Sequence[DueUsage]) -> list[DueUsage]:
    """Return these pieces with what each is filed under; their leases must be locked, so that it does not change."""
    labels = labels_of(list({one.lease.pk: one.lease for one in due}.values())) if due else {}
    kept = kept_labels(labels.values())
    return [one._replace(label=kept[labels[one.lease.pk]]) if one.lease.pk in labels else one for one in due]


def _against_books(
    lease: Lease, found: Sequence[Piece], stored: Sequence[UsageRecord], *, is_repriced: bool
) -> tuple[list[Piece], list[UsageRecord]]:
    """Return the pieces of a lease that no record has yet, and the records that a refund or its minimum makes wrong.

    Both change also what was written before it was known how the lease ends, in months that are open.
    """
    stays, wrong = list(stored), list[UsageRecord]()
    if is_repriced:
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


def _store(due: Sequence[DueUsage], now: datetime) -> set[int]:
    """Write usage records and return the leases of which the database refuses them, usually none.

    One lease with usage of old that stands in the way keeps its month open, and must not keep others unmetered.
    """
    try:
        with transaction.atomic():
            _insert(due, now)
        return set()
    except IntegrityError:
        log.warning("usage is refused by the database: it is written lease by lease")
    refused: set[int] = set()
    for lease_id, own in groupby(due, key=lambda one: one.lease.pk):
        try:
            with transaction.atomic():
                _insert(list(own), now)
        except IntegrityError:
            log.exception("usage of the lease with id %s is refused by the database", lease_id)
            refused.add(lease_id)
    return refused


# One array for each column, as thousands of rows as values are as many parameters: a statement of a megabyte, which
# takes longer to build and to read than the rows take to write.
_INSERT = """
INSERT INTO billing_usagerecord (lease_id, team_id, period_id, late_for_id, rate_id, span, seconds, share_milli,
  share_milli_seconds, micro_per_hour, minimum_micro, currency, refund_id, discount_id, label_id, recorded_at)
SELECT lease, team, month, late_for, rate, tstzrange(begins, ends), seconds, share, seconds * share, price, least,
  currency, refund, discount, label, %s
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::timestamptz[],
  %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
  AS due (lease, team, month, late_for, rate, begins, ends, seconds, share, price, least, currency, refund, discount,
    label)
"""


def _insert(due: Sequence[DueUsage], now: datetime) -> None:
    rows = [
        (
            lease.pk, lease.team_id, month.pk, late_for and late_for.pk, part.stretch.rate.pk, part.stretch.starts_at,
            part.stretch.ends_at, part.stretch.seconds, lease.share_milli, part.price(lease), part.minimum_micro,
            part.stretch.rate.card.currency, part.refund and part.refund.pk,
            part.stretch.discount and part.stretch.discount.pk, label,
        )
        for lease, part, month, late_for, label in due
    ]  # fmt: skip
    if rows:
        execute(_INSERT, [now, *(list(column) for column in zip(*rows, strict=True))])


def _key(usage: UsageRecord) -> tuple[datetime, datetime, int, RefundRule | None]:
    return (usage.span.lower, usage.span.upper, usage.micro_per_hour, usage.refund)


def _due(parts: Sequence[tuple[Lease, Piece]], months: Months, now: datetime) -> list[DueUsage]:
    """Return these pieces with the month that bills each: its own, or the running one where that is closed."""
    if not parts:
        return []
    running = months.bounds(now)[0]
    starts = [months.bounds(part.stretch.starts_at)[0] for _lease, part in parts]
    periods = hold_periods([running, *starts])
    found = []
    for (lease, part), start in zip(parts, starts, strict=True):
        own = periods[start]
        if own.state == PeriodState.CLOSED:
            log.warning("usage of lease %s is late for %s: it is adjusted", lease.uid, own)
            found.append(DueUsage(lease, part, periods[running], late_for=own))
        else:
            found.append(DueUsage(lease, part, own, late_for=None))
    return found
