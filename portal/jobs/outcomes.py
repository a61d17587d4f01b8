"""What nodes report of jobs, and what becomes of a job when its lease ends: attempts begin, end and come again.

The lease goes the moment its job ends. A report is taken inside the transaction that takes the node's report, with
the leases locked; what nobody reports (a lease that was preempted, lost, or ran to its end) is found by ``settle``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from nodeagent.protocol.images import DIGEST, IMAGE_WHYS
from nodeagent.protocol.messages import CONTAINERS, JOBS, JobReport, LeaseReport
from portal.jobs.following import hand_next, take_back
from portal.jobs.models import Job, JobAttempt
from portal.jobs.services import announce_job, end_unbegun, feed_soon
from portal.jobs.states import OPEN_ATTEMPTS, UNENDED_ATTEMPTS, JobState, RetryCause
from portal.leases import lifecycle
from portal.leases.models import Lease
from portal.leases.states import RUNNING_LEASES, EndReason, LeaseState, RequestState
from portal.leases.transitions import lock_leases
from portal.notifications.services import notify

SWEPT_AT_ONCE: Final = 500
UNHEARD_AFTER: Final = timedelta(minutes=5)
_GONE_REQUESTS = (
    RequestState.REJECTED,
    RequestState.WITHDRAWN,
    RequestState.EXPIRED,
    RequestState.IMPOSSIBLE,
)
# Words of a node that the portal has a sentence for; any other is one of "not_entered".
_KNOWN_WHYS = frozenset({"workdir", "command", "not_entered", "vanished", "bad_variable", *IMAGE_WHYS})
# Those whose first process began, or was begun: all others left no output.
_WITH_OUTPUT: Final = frozenset({"", "workdir", "command", "not_entered", "vanished", "begun_before"})
PULLING: Final = "pulling"


def take_reports(
    leases: Sequence[Lease],
    said: Mapping[str, LeaseReport],
    features: Sequence[str],
    now: datetime,
    *,
    held: Collection[int] = (),
) -> None:
    """Take what a node said of the jobs in these locked leases, whose requests are at hand. Safe to repeat.

    ``held`` are the teams whose money is (``portal.jobs.following.hold_money``).
    A node tells of all its leases each time: only where there is news is a job looked at.
    """
    theirs = {ls.pk: ls for ls in leases if ls.request.is_job and _is_current(ls, said.get(ls.uid))}
    if not theirs:
        return
    ordinals = {one.ordinal for ls in theirs.values() for one in _reports_of(said[ls.uid])} | {1}
    tries = JobAttempt.objects.filter(lease__in=theirs)
    known: dict[int, dict[int, tuple[str, bool, str]]] = {}
    for pk, ordinal, state, exit_code, number, digest in tries.filter(
        Q(state__in=UNENDED_ATTEMPTS) | Q(ordinal__in=ordinals)
    ).values_list("lease_id", "ordinal", "state", "exit_code", "signal", "image_digest"):
        known.setdefault(pk, {})[ordinal] = (state, exit_code is None and number is None, digest)
    news = [ls for pk, ls in theirs.items() if _is_news(pk, known.get(pk, {}), said[ls.uid])]
    if not news:
        return
    unended: dict[int, list[JobAttempt]] = {}
    for one in tries.filter(lease__in=news, state__in=UNENDED_ATTEMPTS).select_related(
        "job", "job__user", "job__team", "job__flavor"
    ):
        unended.setdefault(one.lease_id, []).append(one)
    fresh = [ls.request_id for ls in news if ls.pk not in known]
    first = {job.request_id: job for job in Job.objects.filter(request_id__in=fresh, state=JobState.WAITING)}
    for lease in news:
        present = {one.ordinal: one for one in unended.get(lease.pk, ())}
        for one in present.values():
            one.lease = lease
        if lease.pk in known:
            _take_one_of_several(present, lease, said[lease.uid], features, now, held)
        elif lease.request_id in first:
            entry = said[lease.uid]
            begun = _take(first[lease.request_id], None, lease, entry, entry.job, features, now)
            if begun is not None and begun.state == JobState.RUNNING:
                hand_next(begun, lease, features, now, held=held)


def is_overfull(entry: LeaseReport) -> bool:
    """Say whether a node ended a lease because its scratch folder holds more than the node gives."""
    return entry.reason == "scratch_full"


def _reports_of(entry: LeaseReport) -> list[JobReport]:
    return [one for one in (entry.job_before, entry.job) if one is not None]


def _is_news(lease_id: int, known: Mapping[int, tuple[str, bool, str]], entry: LeaseReport) -> bool:
    """Say whether a node's word of a lease's jobs changes any; what comes late of one that is over is kept here."""
    if not known:
        return True
    is_news = False
    for report in _reports_of(entry):
        state, is_untold, digest = known.get(report.ordinal, ("", False, ""))
        if not state:
            continue
        if state not in UNENDED_ATTEMPTS:
            if is_untold and report.phase == "exited":
                _add_late_words(lease_id, report)
            is_news = is_news or report.phase == "running"
        elif (report.phase, state) not in _KNOWN or report.digest not in ("", digest):
            is_news = True
    is_next_waiting = any(state == JobState.WAITING for state, _untold, _digest in known.values())
    return is_news or (is_next_waiting and entry.phase in _CLOSED)


def _take_one_of_several(
    present: Mapping[int, JobAttempt],
    lease: Lease,
    entry: LeaseReport,
    features: Sequence[str],
    now: datetime,
    held: Collection[int],
) -> None:
    """Take what a node said of the jobs that follow each other in a lease: how one ended, and how the next goes."""
    before, report = entry.job_before, entry.job
    ended = present.get(before.ordinal) if before is not None else None
    if before is not None and ended is not None and ended.state in OPEN_ATTEMPTS:
        _end(ended.job, ended, lease, before, now, has_next=True)
    attempt = present.get(report.ordinal) if report is not None else None
    following = next((one for one in present.values() if one.state == JobState.WAITING), None)
    if report is not None and attempt is not None:
        if attempt is following and report.phase != "waiting":
            for (
                one
            ) in present.values():  # a node that runs the next one runs this one no more, whatever it says
                if one.state in OPEN_ATTEMPTS:
                    _end(one.job, one, lease, JobReport("lost"), now, has_next=True)
            _begin_next(attempt, lease, now)
            following = None
        if attempt is not following:
            was = attempt.state
            _take(attempt.job, attempt, lease, entry, report, features, now)
            if attempt.state == JobState.RUNNING and was != attempt.state and following is None:
                following = hand_next(attempt, lease, features, now, held=held)
    elif report is not None and report.phase == "running" and lease.state == LeaseState.ACTIVE:
        # It was cancelled before it began, and its node began it before it heard of that.
        lifecycle.end_leases([lease], reason=EndReason.RELEASED, at=now)
    is_unbegun = report is None or report.ordinal != getattr(following, "ordinal", 0) or not report.why
    if following is not None and entry.phase in _CLOSED and is_unbegun:
        take_back([following])


def _begin_next(attempt: JobAttempt, lease: Lease, now: datetime) -> None:
    """Begin an attempt that its node was handed before: the one before it ended at this very instant."""
    at = min(now, lease.ended_at or now)
    JobAttempt.objects.filter(pk=attempt.pk, state=JobState.WAITING).update(
        state=JobState.STARTING, started_at=at
    )
    attempt.state, attempt.started_at = JobState.STARTING, at
    _begun(attempt, now)


# What a node says of a job that is in this state is no news.
_KNOWN = frozenset(
    {
        ("waiting", str(JobState.WAITING)),
        ("waiting", str(JobState.STARTING)),
        ("running", str(JobState.RUNNING)),
    }
)
# A lease that a node says is in one of these begins no job any more.
_CLOSED = frozenset({"draining", "failed", "gone"})


def _take(
    job: Job,
    attempt: JobAttempt | None,
    lease: Lease,
    entry: LeaseReport,
    report: JobReport | None,
    features: Sequence[str],
    now: datetime,
) -> JobAttempt | None:
    """Take what a node said of one job; returns its attempt, None where none has begun."""
    # Only where nothing has begun: an agent that comes back while Podman is away still tells of what it ran.
    is_unbegun = attempt is None and (report is None or report.phase == "waiting")
    if is_unbegun and job.spec.get("image") and CONTAINERS not in features:
        report = JobReport("exited", exit=126, why="no_containers", ran_ms=0)
    is_over = report is not None and report.phase in ("exited", "lost")
    has_no_image = (
        report is not None and report.why in IMAGE_WHYS
    )  # its holder was never let in, and never pays
    if is_over and lease.state == LeaseState.PREPARING and not has_no_image:
        lifecycle.activate_leases([lease], at=now)  # it was ready and done between two reports
    if attempt is None and (lease.state == LeaseState.ACTIVE or has_no_image):
        is_running = report is not None and report.phase == "running"
        attempt = _begin(job, lease, JobState.RUNNING if is_running else JobState.STARTING, now)
        if JOBS not in features:
            report = JobReport("exited", exit=126, why="no_jobs")
    if attempt is None or report is None:
        _tell_progress(job, report, now)
        return attempt
    _keep_digest(attempt, report)
    if report.phase == "running" and attempt.state == JobState.STARTING:
        _move(job, attempt, JobState.RUNNING, now)
    elif report.phase in ("exited", "lost"):
        _end(job, attempt, lease, report, now, is_last_overfull=is_overfull(entry))
    return attempt


def _tell_progress(job: Job, report: JobReport | None, now: datetime) -> None:
    """Say on the job how far its image is, while its lease waits for that."""
    if report is None or report.why != PULLING or (job.why, job.word) == (PULLING, report.word[:300]):
        return
    told = {"why": PULLING, "word": report.word[:300]}
    if Job.objects.filter(pk=job.pk, state=JobState.WAITING).update(**told):
        announce_job(job, JobState.WAITING, at=now)


def _keep_digest(attempt: JobAttempt, report: JobReport) -> None:
    """Keep which image an attempt runs in, once; what is no digest is nobody's."""
    if not attempt.image_digest and DIGEST.fullmatch(report.digest):
        JobAttempt.objects.filter(pk=attempt.pk).update(image_digest=report.digest)
        attempt.image_digest = report.digest


def _add_late_words(lease_id: int, report: JobReport) -> None:
    """Keep how an attempt ended that was over by its lease before its node said so."""
    late = JobAttempt.objects.filter(lease=lease_id, ordinal=report.ordinal, exit_code=None, signal=None)
    late.exclude(state__in=UNENDED_ATTEMPTS).update(**_told(report))


def _told(report: JobReport) -> dict[str, int | None]:
    return {
        "exit_code": report.exit,
        "signal": report.signal,
        "peak_memory_mib": report.peak_mib,
        "ran_ms": report.ran_ms,
    }


def _is_current(lease: Lease, entry: LeaseReport | None) -> bool:
    return entry is not None and entry.generation == lease.generation


def _begin(job: Job, lease: Lease, state: str, now: datetime) -> JobAttempt:
    attempt = JobAttempt.objects.create(
        job=job, number=job.attempts + 1, lease=lease, started_at=now, state=state
    )
    _begun(attempt, now)
    if state == JobState.RUNNING:
        announce_job(job, state, at=now, lease=lease.uid)
    return attempt


def _begun(attempt: JobAttempt, now: datetime) -> None:
    """Bring a waiting job to the state of its attempt, which has begun."""
    job = attempt.job
    Job.objects.filter(pk=job.pk, state=JobState.WAITING).update(
        state=attempt.state,
        attempts=attempt.number,
        started_at=attempt.started_at,
        ended_at=None,
        why="",
        word="",
    )
    job.state, job.attempts = attempt.state, attempt.number
    if "start" in job.spec.get("notify", ()):
        target = f"{job.uid}#{attempt.number}"
        notify([job.user], "job.started", target=target, at=now, job=job.uid, name=job.name)


def _move(job: Job, attempt: JobAttempt, to: str, now: datetime) -> None:
    JobAttempt.objects.filter(pk=attempt.pk, state=attempt.state).update(state=to)
    Job.objects.filter(pk=job.pk, state=JobState.STARTING).update(state=to)
    attempt.state = job.state = to
    announce_job(job, to, at=now, lease=attempt.lease.uid)


def _end(
    job: Job,
    attempt: JobAttempt,
    lease: Lease,
    report: JobReport,
    now: datetime,
    *,
    has_next: bool = False,
    is_last_overfull: bool = False,
) -> None:
    """Keep how an attempt ended and give its lease back, which stops the money; not where the next has its place.

    ``is_last_overfull``: its node ended the lease for what is in its scratch folder.
    """
    told = _told(report)
    state, why, cause = _judged(report, lease)
    if is_last_overfull and state != JobState.SUCCEEDED:
        state, why, cause = _BY_END[EndReason.SCRATCH_FULL]
    attempt_fields = {**told, "state": state, "why": why, "word": report.word[:300], "ended_at": now}
    # Where nothing was begun, nothing was printed and nothing left.
    closed = {} if report.why in _WITH_OUTPUT else {"log_is_closed": True, "artifacts_are_closed": True}
    JobAttempt.objects.filter(pk=attempt.pk, state=attempt.state).update(**attempt_fields, **closed)
    if not has_next and lease.state in (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED):
        lifecycle.resume_leases([lease], at=now)
        reason = EndReason.SCRATCH_FULL if is_last_overfull else EndReason.RELEASED
        lifecycle.end_leases([lease], reason=reason, at=now)
    attempt.state = state
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
    if not is_again:
        feed_soon(job)
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
    ended += _settle_unbegun(now)
    handed = JobAttempt.objects.filter(job=OuterRef("pk"), state=JobState.WAITING)
    unbegun = Job.objects.filter(~Exists(handed), state=JobState.WAITING).filter(
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


def _settle_unbegun(now: datetime) -> int:
    """Let jobs wait again that were handed to a node whose lease is over; returns how many attempts are decided.

    Where the node has confirmed the end, it would have said that the job began. Where it never will, nobody knows: the
    attempt is taken as begun, and ends as the lease did.
    """
    present = JobAttempt.objects.filter(lease=OuterRef("lease"), state__in=OPEN_ATTEMPTS)
    over = JobAttempt.objects.filter(~Exists(present), state=JobState.WAITING)
    over = over.exclude(lease__state__in=RUNNING_LEASES)
    decided = 0
    for pk, lease_id in list(over.values_list("pk", "lease_id").order_by("lease_id")[:SWEPT_AT_ONCE]):
        with transaction.atomic():
            (lease,) = lock_leases([lease_id])
            attempt = JobAttempt.objects.select_related("job", "job__user").filter(pk=pk).first()
            if attempt is None or attempt.state != JobState.WAITING:
                continue
            is_silent = lease.ended_at is not None and now - lease.ended_at > UNHEARD_AFTER
            if lease.state == LeaseState.ENDED and lease.end_reason != EndReason.FAULT:
                decided += take_back([attempt])
            elif lease.end_reason == EndReason.FAULT or is_silent:
                attempt.lease = lease
                _begin_next(attempt, lease, now)
                decided += 1
    return decided


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
    EndReason.SCRATCH_FULL: (JobState.FAILED, "scratch", ""),
    EndReason.PREEMPTED: (JobState.LOST, "preempted", RetryCause.PREEMPTED),
    EndReason.MAINTENANCE: (JobState.LOST, "maintenance", RetryCause.PREEMPTED),
    EndReason.FAULT: (JobState.LOST, "node_lost", RetryCause.NODE_LOST),
}
