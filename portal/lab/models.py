from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.common.ids import lab_uid

LEAST_POLICIES, MOST_POLICIES = 2, 6


class LabState(models.TextChoices):
    """Where a run of the lab is."""

    QUEUED = "queued", pgettext_lazy("a run of the lab", "Waiting")
    RUNNING = "running", pgettext_lazy("a run of the lab", "Running")
    DONE = "done", pgettext_lazy("a run of the lab", "Done")
    STOPPED = "stopped", pgettext_lazy("a run of the lab", "Stopped")
    FAILED = "failed", pgettext_lazy("a run of the lab", "Failed")


OVER = (LabState.DONE, LabState.STOPPED, LabState.FAILED)


class LabFault(models.TextChoices):
    """Why a run failed."""

    ENDED = (
        "ended",
        _("The run was ended from outside three times, perhaps for want of memory. Try a shorter period."),
    )
    NOTHING = "nothing", _("No request of this history fits the fleet of this run.")
    MISSING = "missing", _("A policy version of this run can no longer be read. Choose others.")
    UNFIT = (
        "unfit",
        _(
            "The changes fit the history no more: a node is gone, too few are alike, or it is too much. Try others."
        ),
    )
    BROKEN = "broken", _("The run stopped by an error of Berth. The worker's log has it.")


class LabRun(models.Model):
    """Two or more policy versions tried on the same history; unchanged once asked for, but for how far it is.

    ``history`` is what is played, as gzipped text of ``scheduler.replay.history``: that of an uploaded trace at once,
    that of a period (``since`` to ``until``) when the run first begins, so that a run that is taken up again plays
    the same. ``answers`` has what came of each version that is through, in the order of ``versions``; ``digest`` is the
    SHA-256 of all of them. ``played`` has the single requests, gzipped; ``changed_most`` those of them whose waits
    differ most: name, team, seconds in each version (None where that was not kept). A run that is not heard of for a
    while is taken up by another process; ``attempts`` counts them, and only the newest writes.
    """

    uid = models.CharField(max_length=24, default=lab_uid, unique=True)
    name = models.CharField(max_length=80)
    state = models.CharField(max_length=8, choices=LabState.choices, default=LabState.QUEUED)
    since = models.DateTimeField(null=True, blank=True)
    until = models.DateTimeField(null=True, blank=True)
    seed = models.PositiveIntegerField(default=1)
    what_if = models.JSONField(default=dict, blank=True)
    versions = ArrayField(models.PositiveIntegerField())
    history = models.BinaryField(null=True, blank=True)
    left_out = models.JSONField(default=dict, blank=True)
    answers = models.JSONField(default=list, blank=True)
    played = models.BinaryField(null=True, blank=True)
    changed_most = models.JSONField(null=True, blank=True)
    digest = models.CharField(max_length=64, blank=True)
    progress_milli = models.PositiveSmallIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    fault = models.CharField(max_length=8, choices=LabFault.choices, blank=True, default="")
    is_stopping = models.BooleanField(default=False)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()
    heard_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=LabState.values), name="lab_state_known"),
            models.CheckConstraint(
                condition=Q(versions__len__gte=LEAST_POLICIES, versions__len__lte=MOST_POLICIES),
                name="lab_compares_two_to_six",
            ),
            models.CheckConstraint(
                condition=Q(since__lt=F("until")) | Q(since=None, until=None, history__isnull=False),
                name="lab_has_a_history",
            ),
            models.CheckConstraint(condition=Q(progress_milli__lte=1000), name="lab_progress_sane"),
            models.CheckConstraint(
                condition=Q(state__in=OVER, ended_at__isnull=False) | (~Q(state__in=OVER) & Q(ended_at=None)),
                name="lab_over_has_its_end",
            ),
            models.CheckConstraint(
                condition=Q(state=LabState.FAILED) & ~Q(fault="") | ~Q(state=LabState.FAILED) & Q(fault=""),
                name="lab_failed_says_why",
            ),
            models.CheckConstraint(
                condition=~Q(state=LabState.DONE) | ~Q(digest=""), name="lab_done_has_its_answer"
            ),
            # Runs are long and low: one at a time leaves the rest of the machine to the product.
            models.UniqueConstraint(
                fields=["state"], condition=Q(state=LabState.RUNNING), name="lab_one_runs_at_a_time"
            ),
        ]

    def __str__(self) -> str:
        return self.uid
