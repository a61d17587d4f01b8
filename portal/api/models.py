from __future__ import annotations

from django.conf import settings
from django.db import models


class IdempotencyKey(models.Model):
    """A call that was made once: its key, what was asked, and the answer to give again."""

    principal = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=100)
    request_hash = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField(null=True)
    location = models.CharField(max_length=300, blank=True)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["principal", "key"], name="idempotency_key_once"),
        ]

    def __str__(self) -> str:
        return self.key
