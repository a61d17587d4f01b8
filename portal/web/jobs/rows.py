"""Jobs and their attempts as pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse

from portal.jobs.models import Job, JobAttempt
from portal.jobs.states import JobState
from portal.jobs.words import outcome_text
from portal.leases.models import Lease

# Tone and icon of each state.
LOOKS = {
    JobState.WAITING: ("info", "hourglass"),
    JobState.STARTING: ("info", "loader-2"),
    JobState.RUNNING: ("good", "activity"),
    JobState.SUCCEEDED: ("good", "circle-check"),
    JobState.FAILED: ("bad", "circle-x"),
    JobState.CANCELLED: ("quiet", "ban"),
    JobState.TIMED_OUT: ("warn", "clock"),
    JobState.LOST: ("warn", "plug-connected"),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job or an attempt; what is None is unknown."""

    uid: str
    url: str
    title: str
    state: str
    tone: str
    icon: str
    outcome: str
    ran_s: float | None
    peak_mib: int | None
    started_at: datetime | None
    ended_at: datetime | None


def job_row(job: Job) -> JobRow:
    """Return a job as a list shows it."""
    index = "" if job.index is None else f" [{job.index}]"
    url = reverse("web:job", args=[job.uid])
    return _row(job, job.uid, url, (job.name or job.uid) + index)


def attempt_row(attempt: JobAttempt) -> JobRow:
    """Return an attempt; its lease must be at hand."""
    uid = attempt.lease.uid
    return _row(attempt, uid, reverse("web:lease", args=[uid]), str(attempt.number))


def job_of(lease: Lease) -> JobRow | None:
    """Return how the job in a lease ended, with the job's own name and page; None where none has begun."""
    attempt = JobAttempt.objects.filter(lease=lease).select_related("job").first()
    if attempt is None:
        return None
    job = job_row(attempt.job)
    return _row(attempt, job.uid, job.url, job.title)


def _row(one: Job | JobAttempt, uid: str, url: str, title: str) -> JobRow:
    tone, icon = LOOKS[JobState(one.state)]
    return JobRow(
        uid=uid,
        url=url,
        title=title,
        state=str(JobState(one.state).label),
        tone=tone,
        icon=icon,
        outcome=outcome_text(one),
        ran_s=None if one.ran_ms is None else one.ran_ms / 1000,
        peak_mib=one.peak_memory_mib,
        started_at=one.started_at,
        ended_at=one.ended_at,
    )
