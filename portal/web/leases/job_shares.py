"""What each of the jobs that followed each other in a lease had of it: whole seconds and cents that add up to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from django.db.models import F

from portal.billing.models import UsageRecord
from portal.catalog.pricing import apportion, exact_micro
from portal.jobs.models import JobAttempt
from portal.jobs.states import JobState
from portal.leases.models import Lease
from portal.web.figures import money
from portal.web.jobs.rows import JobRow, job_row


@dataclass(frozen=True, slots=True)
class JobShare:
    """One job's part of a lease."""

    job: JobRow
    seconds: int
    amount: Decimal | None


def job_shares(lease: Lease, records: Sequence[UsageRecord]) -> list[JobShare]:
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
    return [
        JobShare(job_row(one.job), own, money(amount))
        for one, own, amount in zip(tries, seconds, apportion(exact), strict=True)
    ]


def _exact(records: Sequence[UsageRecord], begin: int, end: int) -> Fraction:
    """Return what the billed seconds from ``begin`` to ``end`` cost, each at the rate of its own record."""
    total, at = Fraction(0), 0
    for record in records:
        own = min(end, at + record.seconds) - max(begin, at)
        if own > 0:
            total += exact_micro(record.share_milli * own, record.micro_per_hour)
        at += record.seconds
    return total
