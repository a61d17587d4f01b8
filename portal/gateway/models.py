from __future__ import annotations

from django.conf import settings
from django.db import models

from portal.leases.models import Lease


class StreamTicket(models.Model):
    """A one-time ticket with which a page or program opens a stream at a gateway; only its SHA-256 is kept.

    It is good for one person, by the session or token that they showed (one of the two), in one generation of one
    lease. ``origin`` is that of the page it was made for, "" for a program. ``app`` is what
    it opens, "" for a terminal.
    """

    digest = models.BinaryField(max_length=32, unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="+", db_index=False)
    generation = models.PositiveIntegerField()
    session_key = models.CharField(max_length=64, blank=True)
    token_id = models.BigIntegerField(default=0)
    origin = models.CharField(max_length=300, blank=True)
    app = models.CharField(max_length=40, blank=True)
    expires_at = models.DateTimeField(db_index=True)
    used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"ticket for lease {self.lease_id}"


class TerminalShare(models.Model):
    """Somebody whom the holder of a lease lets watch its terminals; without a person the whole team of the lease."""

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["lease", "user"], name="terminal_shared_once", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return f"terminals of lease {self.lease_id} for {self.user_id or 'the team'}"
