"""Lease events to usage records: whole seconds, cut at month ends and price changes, never twice.

An interval runs from an event into ``active`` to the next event out of it; both instants are
floored to their second, so intervals tile exactly. Only pieces that can no longer change are
written: the piece that still runs is shown as accruing and written when it ends.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from psycopg.types.range import TimestamptzRange

from portal.billing.models import BillingPeriod, PeriodState, UsageRecord
from portal.billing.periods import month_bounds, period_of
from portal.catalog.models import Rate
from portal.catalog.pricing import Stretch, cut, lowered
from portal.common.clock import whole_second
from portal.common.errors import Conflict
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
    """Part of an interval inside one month and under one rate; ``is_final`` when it cannot grow any more."""

    stretch: Stretch
    is_final: bool


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


def pieces(intervals: Sequence[Interval], rates: Sequence[Rate], *, now: datetime) -> list[Piece]:
    """Cut intervals at month ends and rate changes up to ``now``; raises Conflict where no rate is in force."""
    found: list[Piece] = []
    for interval in intervals:
        end = interval.ends_at or whole_second(now)
        at = interval.starts_at
        while at < end:
            until = min(end, month_bounds(at)[1])
            for stretch in cut(rates, at, until):
                is_final = (
                    interval.ends_at is not None or stretch.ends_at < end or until == month_bounds(at)[1]
                )
                found.append(Piece(stretch, is_final))
            at = until
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
    """Meter the next leases above id ``after``; returns (records written, last id) or None when done."""
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
    known = _known_spans(leases)
    records: list[UsageRecord] = []
    finished: list[int] = []
    for lease in leases:
        try:
            due = pieces(active_intervals(events[lease.pk]), rates[lease.flavor.device_model_id], now=now)
        except Conflict as error:
            log.error("lease %s cannot be metered: %s", lease.uid, error.detail)
            continue
        for piece in due:
            start = piece.stretch.starts_at
            if piece.is_final and (lease.pk, start) not in known:
                records += _record(lease, piece.stretch, now)
        if lease.state not in STILL_RUNNING:
            finished.append(lease.pk)
    UsageRecord.objects.bulk_create(records)
    Lease.objects.filter(pk__in=finished).update(is_metered=True)
    if records:
        failpoint("meter.before_commit")
    return len(records), leases[-1].pk


def _known_spans(leases: Sequence[Lease]) -> set[tuple[int, datetime]]:
    rows = UsageRecord.objects.filter(lease__in=[ls.pk for ls in leases]).values_list("lease_id", "span")
    return {(lease_id, span.lower) for lease_id, span in rows}


def _record(lease: Lease, stretch: Stretch, now: datetime) -> list[UsageRecord]:
    period = _period(stretch.starts_at)
    if period.state == PeriodState.CLOSED:
        log.error("usage of lease %s lies in the closed month %s and was not written", lease.uid, period)
        return []
    return [
        UsageRecord(
            lease=lease,
            team_id=lease.team_id,
            period=period,
            rate=stretch.rate,
            span=TimestamptzRange(stretch.starts_at, stretch.ends_at),
            seconds=stretch.seconds,
            share_milli=lease.share_milli,
            share_milli_seconds=stretch.seconds * lease.share_milli,
            micro_per_hour=lowered(stretch.rate.micro_per_hour, lease.price_milli),
            currency=stretch.rate.card.currency,
            recorded_at=now,
        )
    ]


def _period(at: datetime) -> BillingPeriod:
    return period_of(at)
