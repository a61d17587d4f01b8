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


class AuditLink(models.Model):
    """The number of an entry in the chain; ``digest`` covers the entry and the digest before it."""

    seq = models.BigIntegerField(primary_key=True)
    entry_id = models.BigIntegerField(unique=True)
    linked_at = models.DateTimeField()
    digest = models.BinaryField(max_length=32)

    def __str__(self) -> str:
        return str(self.seq)


class AuditHead(models.Model):
    """How far the chain goes; one row that a trigger lets only go on. Entries up to ``floor`` are all linked."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seq = models.BigIntegerField()
    digest = models.BinaryField(max_length=32)
    floor = models.BigIntegerField()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="one_head_of_the_audit_chain"),
        ]

    def __str__(self) -> str:
        return f"{self.seq}:{bytes(self.digest).hex()}"
