from __future__ import annotations

from django.db import models

from portal.fleet.models import Node


class EnrolToken(models.Model):
    """A one-time token with which a node's agent introduces its key; only its SHA-256 is kept."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="enrol_tokens")
    digest = models.BinaryField(max_length=32, unique=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"enrolment of {self.node_id}"
