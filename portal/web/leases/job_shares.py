"""What an ended lease was billed, and the part of each of the jobs that followed each other in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from django.db.models import F

from portal.billing.models import RefundRule, UsageRecord
from portal.catalog.pricing import apportion, discounted_price, exact_micro, lowered, to_minor
from portal.jobs.models import JobAttempt
from portal.jobs.states import JobState
from portal.leases.models import Lease


@dataclass(frozen=True, slots=True)
class JobPart:
    """One job's part of a lease, in whole seconds and micro-units that add up to the lease's."""

    attempt: JobAttempt
    seconds: int
    micro: int


@dataclass(frozen=True, slots=True)
class LeaseBill:
    """What a lease was billed, in micro-units. ``total_micro`` is None until all its seconds are counted.

    ``refunded_micro`` is what ``refund`` gave back, None where no rule applied; ``minimum_micro`` the minimum charge
    that it came to, None where it cost its time. ``parts`` has a row per job where there were several.
    """

    records: list[UsageRecord]
    seconds: int
    total_micro: int | None
    refunded_micro: int | None
    refund: RefundRule | None
    is_counted: bool
    is_free: bool
    minimum_micro: int | None
    parts: list[JobPart]


def bill_of(lease: Lease) -> LeaseBill:
    """Return what a lease was billed so far, and by whole cents once it is over."""
    rows = UsageRecord.objects.filter(lease=lease).select_related(
        "period", "late_for", "lease", "refund", "rate", "discount"
    )
    records = list(rows.order_by("span"))
    exact = sum((exact_micro(r.share_milli_seconds, r.micro_per_hour) for r in records), Fraction(0))
    whole = sum(
        (
            exact_micro(
                r.share_milli_seconds,
                discounted_price(lowered(r.rate.price_of(lease.flavor), lease.price_milli), r.discount),
            )
            for r in records
        ),
        Fraction(0),
    )
    is_free = lease.activated_at is None
    is_counted = lease.is_metered or is_free
    return LeaseBill(
        records=records,
        seconds=sum(record.seconds for record in records),
        total_micro=to_minor(exact) if is_counted else None,
        refunded_micro=to_minor(whole) - to_minor(exact) if whole > exact else None,
        refund=next((record.refund for record in records if record.refund), None),
        is_counted=is_counted,
        is_free=is_free,
        minimum_micro=next((record.minimum_micro for record in records if record.minimum_micro), None),
        parts=job_parts(lease, records) if lease.request.is_job and is_counted else [],
    )


def job_parts(lease: Lease, records: Sequence[UsageRecord]) -> list[JobPart]:
    """Return the parts of an ended lease by job, in their order; none where it had at most one.

    A job has the time until the next one begins: what lies between two is the earlier one's. A second belongs to the
    job that had its end, so that all add up to what is billed.
    """
    begun = JobAttempt.objects.filter(lease=lease).exclude(state=JobState.WAITING)
    tries = list(
        begun.exclude(ended_at=F("started_at")).select_related("job").order_by("ordinal")
    )  # one that was cancelled before it began ended as it started
    if len(tries) < 2 or lease.activated_at is None:
        return []
    billed = sum(record.seconds for record in records)
    starts = [int((one.started_at - lease.activated_at).total_seconds()) for one in tries[1:]]
    cuts = [0, *(min(max(start, 0), billed) for start in starts), billed]
    seconds = [end - begin for begin, end in pairwise(cuts)]
    exact = [_exact(records, begin, end) for begin, end in pairwise(cuts)]
    return [JobPart(*part) for part in zip(tries, seconds, apportion(exact), strict=True)]


def _exact(records: Sequence[UsageRecord], begin: int, end: int) -> Fraction:
    """Return what the billed seconds from ``begin`` to ``end`` cost, each at the rate of its own record."""
    total, at = Fraction(0), 0
    for record in records:
        own = min(end, at + record.seconds) - max(begin, at)
        if own > 0:
            total += exact_micro(record.share_milli * own, record.micro_per_hour)
        at += record.seconds
    return total
