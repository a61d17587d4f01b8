from __future__ import annotations

from django.conf import settings
from django.db import models


class AuditEntry(models.Model):
    """Who did what to which object, and when. Append-only by trigger."""

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_constraint=False
    )
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=80)
    team_id = models.BigIntegerField(null=True, db_index=True)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["target"], name="audit_by_target")]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
