"""Starts that Berth stands behind: the first P90 that a wait was told, what came of it, and how often it was kept.

A promise is made where the policy in force says so (``promise_p90``). Metering gives back what a refund rule says for
a lease that started later, unless the team's own limits were what held it up at the promised instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.utils import timezone

from portal.common.months import Months, next_month
from portal.common.sql import execute, fetch
from portal.leases.models import Lease, LeaseRequest, StartPromise
from portal.leases.states import LeaseState, RequestState, WorkloadKind

OPEN_FOR = timedelta(days=30)  # who waited longer than this is not looked for any more
MONTHS = 12
# Wait reasons that are the team's own limits: no start was owed while one of them was what stood in the way.
OWN_LIMITS = ("quota_ceiling", "cohort_exhausted", "above_quota", "budget_reached")
_MADE = """
INSERT INTO leases_startpromise (request_id, queued_at, made_at, promised_at, policy_version, outcome, why)
SELECT f.request_id, f.queued_at, f.made_at, f.p90_at, %s, 'open', ''
  FROM leases_startforecast f JOIN unnest(%s::bigint[], %s::timestamptz[]) w (request_id, queued_at)
    ON w.request_id = f.request_id AND w.queued_at = f.queued_at
 WHERE f.p90_at > f.made_at
ON CONFLICT (request_id, queued_at) DO NOTHING
"""
_STARTED = f"""
UPDATE leases_startpromise p SET started_at = s.at,
  outcome = CASE WHEN p.outcome <> 'open' THEN p.outcome WHEN s.at <= p.promised_at THEN 'kept' ELSE 'missed' END
FROM (
  SELECT o.id, min(l.starts_at) AS at FROM leases_startpromise o
    JOIN leases_lease l ON l.request_id = o.request_id AND l.starts_at >= o.queued_at AND NOT l.is_extra
     AND l.state <> '{LeaseState.BOOKED}'
   WHERE o.started_at IS NULL AND o.made_at > %s AND o.outcome <> 'withdrawn' GROUP BY o.id) s
WHERE p.id = s.id AND p.started_at IS NULL
"""  # noqa: S608 (our own states)
# A wait that ended without a start: given up, refused, or begun anew.
_ENDED = f"""
UPDATE leases_startpromise p SET outcome = CASE WHEN coalesce(s.at, p.promised_at) <= p.promised_at
  THEN 'withdrawn' ELSE 'missed' END
FROM (
  SELECT o.id, (SELECT max(e.at) FROM leases_requestevent e WHERE e.request_id = r.id) AS at
    FROM leases_startpromise o JOIN leases_leaserequest r ON r.id = o.request_id
   WHERE o.outcome = 'open' AND o.made_at > %s AND (r.queued_at <> o.queued_at
     OR r.state NOT IN ('{RequestState.QUEUED}', '{RequestState.AWAITING_APPROVAL}', '{RequestState.GRANTED}'))) s
WHERE p.id = s.id AND p.outcome = 'open'
"""  # noqa: S608 (our own states)
# The request is locked, so that it is not granted between the look at its reasons and what is written of them.
_PASSED = f"""
WITH waits AS (
  SELECT r.id, r.queued_at, r.reasons -> 0 ->> 'code' AS code FROM leases_leaserequest r
   WHERE r.state = '{RequestState.QUEUED}' AND r.id IN (
     SELECT o.request_id FROM leases_startpromise o WHERE o.outcome = 'open' AND o.promised_at <= %s AND o.made_at > %s)
   ORDER BY r.id FOR UPDATE SKIP LOCKED)
UPDATE leases_startpromise p SET outcome = CASE WHEN w.code = ANY(%s) THEN 'excused' ELSE 'missed' END,
  why = CASE WHEN w.code = ANY(%s) THEN w.code ELSE '' END
FROM waits w WHERE w.id = p.request_id AND w.queued_at = p.queued_at AND p.outcome = 'open' AND p.promised_at <= %s
"""  # noqa: S608 (our own states)
# The promise of a lease is that of the wait which it ended: no lease of the same request began in between.
_OF_LEASES = f"""
SELECT DISTINCT ON (l.id) l.id, p.id FROM leases_lease l
  JOIN leases_startpromise p ON p.request_id = l.request_id AND p.queued_at <= l.starts_at
 WHERE l.id = ANY(%s) AND NOT l.is_extra AND NOT EXISTS (
   SELECT FROM leases_lease o WHERE o.request_id = l.request_id AND NOT o.is_extra
      AND o.state <> '{LeaseState.BOOKED}' AND o.generation <> l.generation AND o.starts_at >= p.queued_at
      AND o.starts_at < l.starts_at)
 ORDER BY l.id, p.queued_at DESC
"""  # noqa: S608 (our own states)
_RECORD = """
SELECT m.month, r.work, count(*), count(*) FILTER (WHERE p.outcome = 'kept'),
  count(*) FILTER (WHERE p.outcome = 'missed'), count(*) FILTER (WHERE p.outcome = 'excused'),
  count(*) FILTER (WHERE p.outcome = 'withdrawn'), count(*) FILTER (WHERE p.outcome = 'open')
  FROM unnest(%s::date[], %s::timestamptz[], %s::timestamptz[]) m (month, since, until)
  JOIN leases_startpromise p ON p.promised_at >= m.since AND p.promised_at < m.until
  JOIN leases_leaserequest r ON r.id = p.request_id GROUP BY 1, 2 ORDER BY 1 DESC, 2
"""


@dataclass(frozen=True, slots=True)
class PromiseScore:
    """What came of the starts promised for a month and a kind of work (``work`` None: all of them).

    ``kept_milli`` is the part that was kept of those that were kept or missed, None where there are none.
    """

    month: date
    work: WorkloadKind | None
    promised: int
    kept: int
    missed: int
    excused: int
    withdrawn: int
    open: int

    @property
    def kept_milli(self) -> int | None:
        """Return the part that was kept, in thousandths."""
        judged = self.kept + self.missed
        return self.kept * 1000 // judged if judged else None


def promise_starts(queued: dict[int, datetime], *, policy_version: int) -> int:
    """Promise these waits the P90 start that was kept as their first forecast; returns how many. Safe to repeat."""
    return execute(_MADE, [policy_version, list(queued), list(queued.values())]) if queued else 0


def judge(*, now: datetime) -> None:
    """Note the starts that came, and what came of promises whose instant has passed. Safe to repeat and in parallel."""
    since = now - OPEN_FOR
    execute(_STARTED, [since])
    execute(_ENDED, [since])
    own = list(OWN_LIMITS)
    execute(_PASSED, [now, since, own, own, now])


def promises_of(leases: Sequence[Lease]) -> dict[int, StartPromise]:
    """Return by lease the promise of the wait that it ended; two queries, one where there are none."""
    found: dict[int, int] = dict(fetch(_OF_LEASES, [[lease.pk for lease in leases]])) if leases else {}
    known = StartPromise.objects.in_bulk(list(found.values())) if found else {}
    return {lease_id: known[key] for lease_id, key in found.items()}


def is_late(lease: Lease, promise: StartPromise) -> bool:
    """Say whether a lease started later than promised, through no limit of its team's own."""
    return lease.starts_at > promise.promised_at and promise.outcome in ("open", "missed")


def promise_of(request: LeaseRequest) -> StartPromise | None:
    """Return the promise of the wait that a request is in, or was in last; None where none was made."""
    if request.queued_at is None:
        return None
    return StartPromise.objects.filter(request=request, queued_at=request.queued_at).first()


def promise_record(*, now: datetime | None = None) -> list[PromiseScore]:
    """Return what came of promises by month, newest first: all together, then by kind of work. Two queries."""
    months = Months()
    first = months.of(now or timezone.now())
    wanted = [first]
    for _n in range(MONTHS - 1):
        wanted.append(months.of(months.start(wanted[-1]) - timedelta(seconds=1)))
    starts = [months.start(month) for month in wanted]
    ends = [months.start(next_month(month)) for month in wanted]
    # What is promised for a time to come counts in its own month, too.
    by_month: dict[date, list[PromiseScore]] = {}
    for month, work, *counts in fetch(_RECORD, [wanted, starts, ends]):
        by_month.setdefault(month, []).append(PromiseScore(month, WorkloadKind(work), *counts))
    return [row for month, rows in by_month.items() for row in (_together(month, rows), *rows)]


def _together(month: date, rows: Iterable[PromiseScore]) -> PromiseScore:
    counts = zip(*((r.promised, r.kept, r.missed, r.excused, r.withdrawn, r.open) for r in rows), strict=True)
    return PromiseScore(month, None, *(sum(column) for column in counts))
