from __future__ import annotations

from django.db import models
from django.db.models import Q


class OutboxItem(models.Model):
    """A nudge owed: written in the transaction that made the work, removed when the work was done."""

    topic = models.CharField(max_length=64)
    key = models.CharField(max_length=64, blank=True, default="")
    created_at = models.DateTimeField()
    attempts = models.PositiveSmallIntegerField(default=0)
    last_nudged_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["topic", "id"], name="outbox_by_topic")]
        constraints = [
            models.CheckConstraint(condition=Q(attempts__lte=100), name="outbox_attempts_bounded"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.key}"


class InvariantCheck(models.Model):
    """The newest check of all invariants: one row. ``breaches`` holds name, since when and offenders of each.

    ``failure`` says why the newest try found out nothing; what was known before stays then.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    tried_at = models.DateTimeField(null=True)
    checked_at = models.DateTimeField(null=True)
    breaches = models.JSONField(default=list)
    failure = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_invariant_check")]

    def __str__(self) -> str:
        return f"{len(self.breaches)} broken at {self.checked_at}"
