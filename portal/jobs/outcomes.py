"""What nodes report of jobs, and what becomes of a job when its lease ends: attempts begin, end and come again.

The lease goes the moment its job ends. A report is taken inside the transaction that takes the node's report, with
the leases locked; what nobody reports (a lease that was preempted, lost, or ran to its end) is found by ``settle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Q

from nodeagent.protocol.messages import JOBS, JobReport, LeaseReport
from portal.jobs.models import Job, JobAttempt
from portal.jobs.services import announce_job, end_unbegun
from portal.jobs.states import OPEN_ATTEMPTS, OPEN_JOBS, JobState, RetryCause
from portal.leases import lifecycle
from portal.leases.models import Lease
from portal.leases.states import EndReason, LeaseState, RequestState
from portal.leases.transitions import lock_leases
from portal.notifications.services import notify

SWEPT_AT_ONCE: Final = 500
_GONE_REQUESTS = (
    RequestState.REJECTED,
    RequestState.WITHDRAWN,
    RequestState.EXPIRED,
    RequestState.IMPOSSIBLE,
)
# Words of a node that the portal has a sentence for; any other is one of "not_entered".
_KNOWN_WHYS = frozenset({"workdir", "command", "not_entered", "vanished"})


def take_reports(
    leases: Sequence[Lease], said: Mapping[str, LeaseReport], features: Sequence[str], now: datetime
) -> None:
    """Take what a node said of the jobs in these locked leases, whose requests are at hand. Safe to repeat."""
    theirs = {ls.request_id: ls for ls in leases if ls.request.is_job and _is_current(ls, said.get(ls.uid))}
    if not theirs:
        return
    _add_late_words(theirs.values(), said)
    jobs = Job.objects.filter(request_id__in=theirs, state__in=OPEN_JOBS).select_related("team", "user")
    attempts = {
        one.lease_id: one for one in JobAttempt.objects.filter(lease_id__in=[ls.pk for ls in theirs.values()])
    }
    for job in jobs:
        assert job.request_id is not None
        lease = theirs[job.request_id]
        entry = said[lease.uid]
        report = entry.job
        if report is not None and report.phase in ("exited", "lost") and lease.state == LeaseState.PREPARING:
            lifecycle.activate_leases([lease], at=now)  # it was ready and done between two reports
        attempt = attempts.get(lease.pk)
        if attempt is None and lease.state == LeaseState.ACTIVE:
            attempt = _begin(job, lease, now)
            if JOBS not in features:
                report = JobReport("exited", exit=126, why="no_jobs")
        if attempt is None or report is None:
            continue
        if report.phase == "running" and attempt.state == JobState.STARTING:
            _move(job, attempt, JobState.RUNNING, now)
        elif report.phase in ("exited", "lost"):
            _end(job, attempt, lease, report, now)


def _add_late_words(leases: Iterable[Lease], said: Mapping[str, LeaseReport]) -> None:
    """Keep how attempts ended that were over by their lease before their node said so."""
    over = {ls.pk: said[ls.uid].job for ls in leases if ls.state != LeaseState.ACTIVE}
    for pk, report in over.items():
        if report is not None and report.phase == "exited":
            JobAttempt.objects.filter(lease_id=pk, exit_code=None, signal=None).exclude(
                state__in=OPEN_ATTEMPTS
            ).update(**_told(report))


def _told(report: JobReport) -> dict[str, int | None]:
    return {
        "exit_code": report.exit,
        "signal": report.signal,
        "peak_memory_mib": report.peak_mib,
        "ran_ms": report.ran_ms,
    }


def _is_current(lease: Lease, entry: LeaseReport | None) -> bool:
    return entry is not None and entry.generation == lease.generation


def _begin(job: Job, lease: Lease, now: datetime) -> JobAttempt:
    number = job.attempts + 1
    attempt = JobAttempt.objects.create(job=job, number=number, lease=lease, started_at=now)
    Job.objects.filter(pk=job.pk, state=JobState.WAITING).update(
        state=JobState.STARTING, attempts=number, started_at=now, ended_at=None
    )
    job.state, job.attempts = JobState.STARTING, number
    if "start" in job.spec.get("notify", ()):
        notify([job.user], "job.started", target=f"{job.uid}#{number}", at=now, job=job.uid, name=job.name)
    return attempt


def _move(job: Job, attempt: JobAttempt, to: str, now: datetime) -> None:
    JobAttempt.objects.filter(pk=attempt.pk, state=attempt.state).update(state=to)
    Job.objects.filter(pk=job.pk, state=JobState.STARTING).update(state=to)
    attempt.state = job.state = to
    announce_job(job, to, at=now, lease=attempt.lease.uid)


def _end(job: Job, attempt: JobAttempt, lease: Lease, report: JobReport, now: datetime) -> None:
    """Keep how an attempt ended and give its lease back: the money stops here."""
    told = _told(report)
    state, why, cause = _judged(report, lease)
    attempt_fields = {**told, "state": state, "why": why, "word": report.word[:300], "ended_at": now}
    JobAttempt.objects.filter(pk=attempt.pk, state=attempt.state).update(**attempt_fields)
    if lease.state in (LeaseState.ACTIVE, LeaseState.INTERRUPTED):
        lifecycle.resume_leases([lease], at=now)
        lifecycle.end_leases([lease], reason=EndReason.RELEASED, at=now)
    _conclude(job, attempt_fields, cause, now)


def _judged(report: JobReport, lease: Lease) -> tuple[str, str, str]:
    """Return the attempt's state, why in a word, and what a retry may be for."""
    if report.phase == "lost":
        why, state = ("oom", JobState.FAILED) if report.is_oom else ("vanished", JobState.LOST)
        return state, why, "" if report.is_oom else RetryCause.NODE_LOST
    if report.exit == 0:
        return JobState.SUCCEEDED, "", ""
    if report.why:
        return JobState.FAILED, report.why if report.why in (*_KNOWN_WHYS, "no_jobs") else "not_entered", ""
    if report.is_asked:  # by the node, before the end that the lease has
        if lease.preempt_at is not None:
            return JobState.LOST, "preempted", RetryCause.PREEMPTED
        return JobState.TIMED_OUT, "time", ""
    if report.signal is None and report.exit is not None:
        return JobState.FAILED, "oom" if report.is_oom and report.exit == 137 else "", f"exit:{report.exit}"
    return JobState.FAILED, "oom" if report.is_oom else "", ""


def _conclude(job: Job, ended: Mapping[str, object], cause: str, now: datetime) -> None:
    """End a job with its attempt, or let it wait for another one by its own rule."""
    fields = dict(ended)
    is_again = bool(cause) and cause in job.spec.get("retry_on", ()) and job.retries_left > 0
    if is_again:
        fields |= {"state": JobState.WAITING, "request": None, "ended_at": None}
        fields["retries_left"] = job.retries_left - 1
    won = Job.objects.filter(pk=job.pk, state__in=(JobState.STARTING, JobState.RUNNING)).update(**fields)
    if not won:
        return
    state = str(fields["state"])
    announce_job(job, state, at=now)
    wishes = job.spec.get("notify", ())
    is_good = state == JobState.SUCCEEDED
    if not is_again and ("end" in wishes or ("fail" in wishes and not is_good)):
        notify(
            [job.user], "job.succeeded" if is_good else "job.ended", target=f"{job.uid}#{job.attempts}", at=now,
            job=job.uid, name=job.name, state=state,
        )  # fmt: skip


def settle(*, now: datetime) -> int:
    """End attempts whose lease is over, and jobs whose request came to nothing. Returns how many. Safe to repeat."""
    over = (
        JobAttempt.objects.filter(state__in=OPEN_ATTEMPTS)
        .exclude(lease__state=LeaseState.ACTIVE)
        .values_list("pk", "lease_id")
        .order_by("lease_id")[:SWEPT_AT_ONCE]
    )
    ended = sum(_settle_one(pk, lease_id, now) for pk, lease_id in list(over))
    unbegun = Job.objects.filter(state=JobState.WAITING).filter(
        Q(request__state__in=_GONE_REQUESTS) | Q(request__state=RequestState.FULFILLED)
    )
    for job in list(unbegun.select_related("user", "request")[:SWEPT_AT_ONCE]):
        assert job.request is not None
        is_withdrawn = job.request.state == RequestState.WITHDRAWN
        state = JobState.CANCELLED if is_withdrawn else JobState.FAILED
        why = "request" if job.request.state != RequestState.FULFILLED else "released"
        ended += end_unbegun(job, why=why, now=now, state=state)
    dead = Job.objects.filter(
        state=JobState.WAITING,
        request=None,
        after__state__in=(JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.LOST),
    ).distinct()
    for job in list(dead[:SWEPT_AT_ONCE]):
        ended += end_unbegun(job, why="after", now=now)
    return ended


@transaction.atomic
def _settle_one(attempt_id: int, lease_id: int, now: datetime) -> bool:
    """End an attempt whose lease is over; False where its node has reported it meanwhile."""
    (lease,) = lock_leases([lease_id])
    attempt = JobAttempt.objects.select_related("job", "job__user", "job__team").get(pk=attempt_id)
    if attempt.state not in OPEN_ATTEMPTS or lease.state == LeaseState.ACTIVE:
        return False
    job = attempt.job
    if lease.state == LeaseState.INTERRUPTED:
        if RetryCause.NODE_LOST not in job.spec.get("retry_on", ()) or not job.retries_left:
            return False  # the node may come back, and the job with it
        lifecycle.fail_leases([lease], at=now, fault="the node has not been heard")
    state, why, cause = _BY_END.get(lease.end_reason, (JobState.LOST, "node_lost", RetryCause.NODE_LOST))
    fields = {"state": state, "why": why, "word": "", "ended_at": lease.ended_at or now}
    JobAttempt.objects.filter(pk=attempt.pk, state=attempt.state).update(**fields)
    _conclude(job, fields, cause, now)
    return True


_BY_END: Final[dict[str, tuple[str, str, str]]] = {
    EndReason.EXPIRED: (JobState.TIMED_OUT, "time", ""),
    EndReason.RELEASED: (JobState.CANCELLED, "released", ""),
    EndReason.IDLE: (JobState.CANCELLED, "released", ""),
    EndReason.PREEMPTED: (JobState.LOST, "preempted", RetryCause.PREEMPTED),
    EndReason.MAINTENANCE: (JobState.LOST, "maintenance", RetryCause.PREEMPTED),
    EndReason.FAULT: (JobState.LOST, "node_lost", RetryCause.NODE_LOST),
}
