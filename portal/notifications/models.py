from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class Notification(models.Model):
    """Something a person should know: a kind with the figures its sentence is made from."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=40)
    target = models.CharField(max_length=40, blank=True)
    facts = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["user"], name="notification_unread", condition=Q(read_at=None))]
        constraints = [
            models.UniqueConstraint(fields=["user", "kind", "target"], name="notification_once_per_target")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"
