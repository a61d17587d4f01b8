"""The life of a batch job and of its attempts, apart from that of leases: what may follow what."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class JobState(models.TextChoices):
    """Steps of a job."""

    WAITING = "waiting", pgettext_lazy("job", "Waiting")
    STARTING = "starting", pgettext_lazy("job", "Starting")
    RUNNING = "running", pgettext_lazy("job", "Running")
    SUCCEEDED = "succeeded", pgettext_lazy("job", "Succeeded")
    FAILED = "failed", pgettext_lazy("job", "Failed")
    CANCELLED = "cancelled", pgettext_lazy("job", "Cancelled")
    TIMED_OUT = "timed_out", pgettext_lazy("job", "Timed out")
    LOST = "lost", pgettext_lazy("job", "Lost")


class RetryCause(models.TextChoices):
    """What an attempt may be repeated for, beside an exit code of its own (exit:75)."""

    PREEMPTED = "preempted", _("Preempted")
    NODE_LOST = "node_lost", _("Node lost")


J = JobState
_ENDS = frozenset({J.SUCCEEDED, J.FAILED, J.CANCELLED, J.TIMED_OUT, J.LOST})
# A retry brings a job back to the queue, by rule or because somebody asks for it.
JOB_NEXT: dict[str, frozenset[str]] = {
    J.WAITING: frozenset({J.STARTING, J.RUNNING, J.FAILED, J.CANCELLED, J.LOST}) | _ENDS,
    J.STARTING: frozenset({J.RUNNING, J.WAITING}) | _ENDS,
    J.RUNNING: frozenset({J.WAITING}) | _ENDS,
    J.FAILED: frozenset({J.WAITING}),
    J.CANCELLED: frozenset({J.WAITING}),
    J.TIMED_OUT: frozenset({J.WAITING}),
    J.LOST: frozenset({J.WAITING}),
}
# An attempt waits only where it was handed to a node to follow another; one that was never begun is removed.
ATTEMPT_NEXT: dict[str, frozenset[str]] = {
    J.WAITING: frozenset({J.STARTING, J.RUNNING}) | _ENDS,
    J.STARTING: frozenset({J.RUNNING}) | _ENDS,
    J.RUNNING: _ENDS,
}
ATTEMPT_STATES = (J.WAITING, J.STARTING, J.RUNNING, J.SUCCEEDED, J.FAILED, J.CANCELLED, J.TIMED_OUT, J.LOST)
OPEN_JOBS = (J.WAITING, J.STARTING, J.RUNNING)
UNENDED_ATTEMPTS = (J.WAITING, J.STARTING, J.RUNNING)
OPEN_ATTEMPTS = (J.STARTING, J.RUNNING)
ENDED_JOBS = (J.SUCCEEDED, J.FAILED, J.CANCELLED, J.TIMED_OUT, J.LOST)
