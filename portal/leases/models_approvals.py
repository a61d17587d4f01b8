from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q


class ApprovalStep(models.Model):
    """One person's approval of a request, with the terms as they approved them; never changed afterwards.

    ``asked_count`` and ``asked_duration_s`` are what the request asked for until then, ``count`` (on each node) and
    ``duration_s`` what this person let through. ``is_above``: they decide in a team above the one that asks. A deputy
    approves ``on_behalf_of`` somebody; the two count as one person, so a trigger refuses a second step of either.
    """

    request = models.ForeignKey(
        "LeaseRequest", on_delete=models.PROTECT, related_name="approval_steps", db_index=False
    )
    approver = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    on_behalf_of = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    is_above = models.BooleanField()
    at = models.DateTimeField()
    note = models.CharField(max_length=300, blank=True)
    asked_count = models.PositiveSmallIntegerField()
    asked_duration_s = models.PositiveIntegerField()
    count = models.PositiveSmallIntegerField()
    duration_s = models.PositiveIntegerField()
    quote_micro = models.BigIntegerField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["request", "approver"], name="approval_step_once_per_person"),
            models.CheckConstraint(
                condition=Q(on_behalf_of=None) | ~Q(on_behalf_of=F("approver")),
                name="approval_step_on_behalf_of_another",
            ),
            models.CheckConstraint(
                condition=Q(count__gte=1, count__lte=F("asked_count"))
                & Q(duration_s__gte=1, duration_s__lte=F("asked_duration_s")),
                name="approval_step_gives_no_more_than_asked",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}: {self.count} for {self.duration_s} s"

    @property
    def is_less(self) -> bool:
        """Say whether less was let through than was asked for."""
        return (self.count, self.duration_s) != (self.asked_count, self.asked_duration_s)
