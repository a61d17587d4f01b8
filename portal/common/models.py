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
