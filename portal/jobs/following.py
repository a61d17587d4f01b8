"""One job of an array after another in the same lease, so that no slot is cleaned and made anew between short ones.

While a job runs, its node is handed the next one, which it begins the moment the first has ended and nothing of it is
left. What was handed over and not begun when the lease ends is asked for anew. ADR 18 says what may follow and why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from django.db.models import F, Max, Q

from nodeagent.protocol.messages import JOBS_FOLLOW, LeaseReport
from portal.catalog import pricing
from portal.common import outbox
from portal.common.errors import BerthError, Conflict
from portal.common.sql import fetch, in_sql
from portal.fleet.services import raise_revision
from portal.jobs.models import Job, JobAttempt
from portal.jobs.services import FEED, could_ask_for
from portal.jobs.spec import may_follow
from portal.jobs.states import JobState
from portal.leases.budget_gate import (
    Expense,
    asking_approval,
    hold_budgets,
    is_limited,
    judge,
    limited_teams,
    stopping,
)
from portal.leases.hold_periods import hold_until
from portal.leases.models import Lease, LeaseRequest
from portal.leases.next_blocks import next_blocks
from portal.leases.states import LIVE_LEASES, LeaseState, RequestState
from portal.leases.transitions import move_requests
from portal.leases.wallet_holds import hold_more, wallet_of
from portal.quotas.selectors import shortest_run_limit
from portal.teams.models import Team

# A lease is made longer by so much more than the time of the next job: the present one has as long to end. So what
# follows is short work, and a lease whose job takes longer simply ends with it.
WITHIN: Final = timedelta(seconds=60)
TRIED_FOR: Final = timedelta(seconds=1)
MOST_TRIED: Final = 1000

# Whoever else waits for such a device is served by the policy, not by us: a lease goes on only where its own author
# would be next by priority and age anyway.
OTHERS_WAIT: Final = (
    "SELECT EXISTS (SELECT 1 FROM leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"  # noqa: S608 (our own states)
    " LEFT JOIN jobs_job j ON j.request_id = r.id"
    f" WHERE r.state = '{RequestState.QUEUED}' AND f.device_model_id = %s AND j.array_id IS DISTINCT FROM %s AND NOT ("
    " r.author_id = %s AND r.team_id = %s AND r.priority <= %s AND (r.queued_at, r.id) > (%s, %s)))"
)
# Whose job a report tells to have begun which the portal does not know of yet: only then may one be handed over, and
# only where it is of an array.
BEGINS: Final = (
    "SELECT DISTINCT l.team_id FROM unnest(%s::text[], %s::int[]) AS s(uid, ordinal)"  # noqa: S608 (our own states)
    " JOIN leases_lease l ON l.uid = s.uid JOIN leases_leaserequest r ON r.id = l.request_id AND r.is_job"
    f" WHERE l.node_id = %s AND l.state IN {in_sql(LIVE_LEASES)} AND NOT EXISTS (SELECT 1 FROM jobs_jobattempt a"
    f" WHERE a.lease_id = l.id AND a.ordinal = s.ordinal AND a.state = '{JobState.RUNNING}')"
    " AND EXISTS (SELECT 1 FROM jobs_job j WHERE j.request_id = r.id AND j.array_id IS NOT NULL)"
)


def hold_money(node_id: int, said: Mapping[str, LeaseReport], features: Collection[str]) -> frozenset[int]:
    """Lock what pays for the jobs that may follow those of which a node says that they have begun.

    Returns the teams whose budgets and wallets are held. In a transaction, before any other lock.
    """
    begun = [(uid, one.job.ordinal) for uid, one in said.items() if one.job and one.job.phase == "running"]
    if not begun or JOBS_FOLLOW not in features:
        return frozenset()
    limited = limited_teams()
    if not limited:
        return frozenset()
    uids, ordinals = zip(*begun, strict=True)
    teams = limited & {pk for (pk,) in fetch(BEGINS, [list(uids), list(ordinals), node_id])}
    if teams:
        # What leaves the node is freed in the same transaction, and quota rows are taken in one order.
        live = Lease.objects.filter(node_id=node_id, state__in=LIVE_LEASES)
        hold_budgets(
            Team.objects.filter(pk__in=teams), beside=Team.objects.filter(pk__in=live.values("team_id"))
        )
    return teams


def hand_next(
    attempt: JobAttempt, lease: Lease, features: Collection[str], now: datetime, *, held: Collection[int]
) -> JobAttempt | None:
    """Hand the node of a locked lease the job that may follow the one that has just begun there; None for none.

    Its own request is withdrawn. ``held`` are the teams whose money is (``hold_money``): where a budget or a wallet
    limits another team, nothing follows. Locks the request, without waiting, then the node.
    """
    job = attempt.job
    is_free = (
        lease.state == LeaseState.ACTIVE
        and lease.preempt_at is None
        and not (lease.cut_by or lease.wanted_until)
    )
    if JOBS_FOLLOW not in features or job.array_id is None or not (is_free and may_follow(job.spec)):
        return None
    has_limit = is_limited(lease.team)
    if has_limit and lease.team_id not in held:  # locked before leases, or not at all
        return None
    found = _next_of(job, now, has_limit=has_limit)
    if found is None or not _is_held_long_enough(lease, job, now, has_limit=has_limit):
        return None
    following, request = found
    if request is not None:
        move_requests([request], RequestState.WITHDRAWN, at=now, reason=f"its job follows in {lease.uid}")
    Job.objects.filter(pk=following.pk, state=JobState.WAITING).update(request=lease.request_id)
    newest = JobAttempt.objects.filter(lease=lease).aggregate(ordinal=Max("ordinal"))["ordinal"]
    number = following.attempts + 1
    made = JobAttempt.objects.create(
        job=following, number=number, lease=lease, ordinal=newest + 1, state=JobState.WAITING, started_at=now
    )
    raise_revision([lease.node_id])
    return made


def _next_of(job: Job, now: datetime, *, has_limit: bool) -> tuple[Job, LeaseRequest | None] | None:
    """Return the job of the same array that comes next, locked, with its request in the queue; None for none.

    One that has no request is taken only where it could ask for one that needs no approval.
    """
    waiting = (
        Job.objects.filter(array=job.array_id, state=JobState.WAITING)
        .filter(Q(request=None) | Q(request__state=RequestState.QUEUED))
        .order_by(F("request__queued_at").asc(nulls_last=True), "id")
        .select_related("team", "user", "flavor", "array")
        .select_for_update(of=("self",), skip_locked=True)
        .first()
    )
    if waiting is None:
        return None
    request = None
    if waiting.request_id is not None:
        queued = LeaseRequest.objects.filter(pk=waiting.request_id, state=RequestState.QUEUED)
        request = queued.select_for_update(of=("self",), skip_locked=True).first()
        if request is None:
            return None
    since, place = (now, 0) if request is None else (request.queued_at, request.pk)
    priority = -1 if request is None else request.priority
    whose = [waiting.flavor.device_model_id, waiting.array_id, waiting.user_id, waiting.team_id]
    ((others_wait,),) = fetch(OTHERS_WAIT, [*whose, priority, since, place])
    if others_wait:
        return None
    if request is None and not _may_ask(waiting, now, has_limit=has_limit):
        return None
    return waiting, request


# When a request for a job of an array was last tried, and whether it could be asked for; by array.
_tried: dict[int, tuple[datetime, bool]] = {}


def _may_ask(job: Job, now: datetime, *, has_limit: bool) -> bool:
    """Say whether a job of an array that has no request could ask for one without an approval.

    Trying is a third of what handing over costs, and the array's jobs differ by nothing that is looked at. So what was
    found holds for the others for ``TRIED_FOR``, but where money is limited: each spends some.
    """
    assert job.array_id is not None
    at, could = _tried.get(job.array_id, (None, False))
    if at is not None and not has_limit and timedelta(0) <= now - at < TRIED_FOR:
        return could
    try:
        could = could_ask_for(job, now=now)
    except BerthError:
        could = False
    if len(_tried) >= MOST_TRIED:
        _tried.clear()
    _tried[job.array_id] = now, could
    return could


def _is_held_long_enough(lease: Lease, job: Job, now: datetime, *, has_limit: bool) -> bool:
    """Make a lease longer where the next job needs that; False where something stands behind it, or money is short."""
    assert lease.activated_at is not None
    needed = now + timedelta(seconds=job.time_s) + WITHIN
    if lease.not_after >= needed:
        return not has_limit or _pay_until(lease, lease.not_after, now) is not None
    until = needed + WITHIN  # not with every job anew
    limit = shortest_run_limit(lease.team)
    most_s = min(job.flavor.max_duration_s, limit.most_s if limit else job.flavor.max_duration_s)
    longest = lease.activated_at + timedelta(seconds=most_s)
    block = next_blocks([lease.pk], now=now).get(lease.pk)
    if until > longest or (block is not None and block.at < until) or lease.node.is_cordoned:
        return False
    micro = _pay_until(lease, until, now) if has_limit else 0
    if micro is None:
        return False
    reached = hold_until([lease.pk], until)
    if reached is not None and reached < until:  # booked since we looked
        hold_until([lease.pk], lease.not_after)
        return False
    if micro:
        hold_more([lease], micro, at=now)
    Lease.objects.filter(pk=lease.pk).update(not_after=until, warned_at=None)
    lease.not_after, lease.warned_at = until, None
    return True


def _pay_until(lease: Lease, until: datetime, now: datetime) -> int | None:
    """Return what a wallet has to hold more for a limited team's lease that goes on until then; None where
    nothing may start.

    The time that a lease has is paid for. But where a threshold of a budget is passed already, nothing starts there
    either, as it would not in a lease of its own. Call with the budgets held.
    """
    extra_s = int((until - lease.not_after).total_seconds())
    expense = Expense(lease.team, 0, now, until, lease.is_preemptible, wallet_id=wallet_of(lease))
    if extra_s:
        try:
            price = pricing.quote(
                lease.flavor,
                team_id=lease.team_id,
                is_preemptible=lease.is_preemptible,
                count=lease.count,
                duration_s=extra_s,
                starts_at=lease.not_after,
                price_milli=lease.price_milli,
            )
        except Conflict:  # nobody knows what it costs
            return None
        expense = replace(
            expense,
            micro=price.amount_micro,
            starts_at=lease.not_after,
            hold_micro=price.hold_micro,
            share_milli=lease.share_milli,
        )
    (reached,) = judge([expense], now=now, with_waiting=False)
    if stopping(reached, lease.is_preemptible) is not None or asking_approval(reached) is not None:
        return None
    return expense.at_most


def take_back(attempts: Sequence[JobAttempt]) -> int:
    """Let jobs wait again that were handed to a node and never begun there; returns how many. Leases are locked."""
    if not attempts:
        return 0
    jobs = [attempt.job_id for attempt in attempts]
    JobAttempt.objects.filter(pk__in=[one.pk for one in attempts], state=JobState.WAITING).delete()
    Job.objects.filter(pk__in=jobs, state=JobState.WAITING).update(request=None)
    outbox.nudge_on_commit(FEED)
    return len(jobs)
