"""Jobs and their attempts as pages show them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from datetime import datetime

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.common.units import bytes_text
from portal.jobs.artifacts import kept_files
from portal.jobs.models import Artifact, Job, JobAttempt
from portal.jobs.states import JobState
from portal.jobs.words import left_out_text, outcome_text
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
    files: int = 0
    files_size: str = ""
    image_digest: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A file that an attempt left; ``url`` is "" where there is nothing to download, and ``note`` says why."""

    path: str
    attempt: int
    size: str
    sha256: str
    url: str
    note: str


def command_text(job: Job) -> str:
    """Return what a job runs as its owner would type it."""
    command = job.spec["command"]
    return command if isinstance(command, str) else shlex.join(command)


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
    attempt = JobAttempt.objects.filter(lease=lease).select_related("job").order_by("ordinal").first()
    if attempt is None:
        return None
    job = job_row(attempt.job)
    files, size = kept_files(JobAttempt.objects.filter(pk=attempt.pk)).get(attempt.pk, (0, 0))
    row = _row(attempt, job.uid, job.url, job.title)
    return replace(row, files=files, files_size=bytes_text(size))


def artifact_row(artifact: Artifact, job: Job) -> ArtifactRow:
    """Return a file that an attempt left; its attempt must be at hand."""
    note = left_out_text(artifact)
    if artifact.removed_at is not None:
        note = _("Removed: its time was over.")
    elif not note and artifact.stored < artifact.size:
        note = _("On its way: %(percent)d %%.") % {"percent": artifact.stored * 100 // artifact.size}
    elif not note and not artifact.is_checked:
        note = _("All of it is here and is compared with what it was on its node.")
    return ArtifactRow(
        path=artifact.path,
        attempt=artifact.attempt.number,
        size="" if artifact.left_out else bytes_text(artifact.size),
        sha256=artifact.sha256,
        url="" if note else reverse("web:job_artifact", args=[job.uid, artifact.pk]),
        note=note,
    )


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
        image_digest=one.image_digest if isinstance(one, JobAttempt) else "",
    )
