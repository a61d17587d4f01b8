"""When a waiting request was told that it would start, what was promised of that, and what came."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class StartForecast(models.Model):
    """The first start that was shown to a waiting request, kept to be compared with what came."""

    request = models.ForeignKey("leases.LeaseRequest", on_delete=models.CASCADE, related_name="forecasts")
    queued_at = models.DateTimeField()
    made_at = models.DateTimeField()
    p50_at = models.DateTimeField()
    p90_at = models.DateTimeField()
    raw_s = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-made_at", "-id"]
        indexes = [models.Index(fields=["-made_at"], name="forecast_by_time")]
        constraints = [
            models.UniqueConstraint(fields=["request", "queued_at"], name="forecast_once_per_wait"),
            models.CheckConstraint(condition=Q(p90_at__gte=F("p50_at")), name="forecast_in_order"),
        ]

    def __str__(self) -> str:
        return f"forecast for {self.request_id}"


class PromiseOutcome(models.TextChoices):
    """What came of a promised start."""

    OPEN = "open", pgettext_lazy("promise", "Open")
    KEPT = "kept", pgettext_lazy("promise", "Kept")
    MISSED = "missed", pgettext_lazy("promise", "Missed")
    EXCUSED = "excused", pgettext_lazy("promise", "Held up by own limits")
    WITHDRAWN = "withdrawn", _("Wait ended before")


class StartPromise(models.Model):
    """The instant by which Berth promised a waiting request its start: the first P90 that it was told in this wait.

    ``policy_version`` is the policy that promised. ``outcome`` is decided once: as the start comes, or at the first
    look after the promised instant, where ``why`` is the code of the wait reason that excuses it. A trigger keeps the
    rest as it is.
    """

    request = models.ForeignKey("leases.LeaseRequest", on_delete=models.PROTECT, related_name="promises")
    queued_at = models.DateTimeField()
    made_at = models.DateTimeField()
    promised_at = models.DateTimeField()
    policy_version = models.PositiveIntegerField()
    started_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=9, choices=PromiseOutcome.choices, default=PromiseOutcome.OPEN)
    why = models.CharField(max_length=30, blank=True)

    class Meta:
        ordering = ["-promised_at", "-id"]
        indexes = [
            models.Index(fields=["-promised_at"], name="promise_by_time"),
            models.Index(fields=["made_at"], name="promise_not_started", condition=Q(started_at=None)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["request", "queued_at"], name="promise_once_per_wait"),
            models.CheckConstraint(condition=Q(promised_at__gt=F("made_at")), name="promise_lies_ahead"),
            models.CheckConstraint(
                condition=Q(outcome__in=PromiseOutcome.values), name="promise_outcome_known"
            ),
            models.CheckConstraint(
                condition=Q(
                    outcome=PromiseOutcome.KEPT, started_at__isnull=False, started_at__lte=F("promised_at")
                )
                | ~Q(outcome=PromiseOutcome.KEPT),
                name="promise_kept_by_a_start",
            ),
            models.CheckConstraint(
                condition=Q(outcome=PromiseOutcome.EXCUSED) & ~Q(why="")
                | ~Q(outcome=PromiseOutcome.EXCUSED) & Q(why=""),
                name="promise_excused_says_why",
            ),
        ]

    def __str__(self) -> str:
        return f"start of {self.request_id} by {self.promised_at:%Y-%m-%d %H:%M}"
