from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from portal.teams.models import Team

LAST_DAY = 28  # every month has it


class ReportMailing(models.Model):
    """The report of a month, sent to people by itself: of ``team`` and all below it, as far as each of them sees them.

    ``day`` None: after each close; else on that day of the month, for the month before, whether it is closed or not.
    ``formats`` are kinds of files, in ``language``; mailboxes get them attached, webhooks their addresses.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    day = models.PositiveSmallIntegerField(null=True, blank=True)
    formats = ArrayField(models.CharField(max_length=5))
    language = models.CharField(max_length=10)
    recipients = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    is_on = models.BooleanField(default=True)
    made_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(
                condition=Q(day=None) | Q(day__gte=1, day__lte=LAST_DAY), name="mailing_day_of_each_month"
            ),
            models.CheckConstraint(condition=Q(formats__len__gt=0), name="mailing_sends_something"),
        ]

    def __str__(self) -> str:
        return f"report of {self.team_id} to people"


class ReportSending(models.Model):
    """A month that a mailing has sent: once, whoever looks. People are told in the transaction that writes it."""

    mailing = models.ForeignKey(ReportMailing, on_delete=models.CASCADE, related_name="sendings")
    period = models.ForeignKey("billing.BillingPeriod", on_delete=models.PROTECT, related_name="+")
    sent_at = models.DateTimeField()

    class Meta:
        ordering = ["-sent_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["mailing", "period"], name="mailing_sends_a_month_once")
        ]

    def __str__(self) -> str:
        return f"{self.period_id} by {self.mailing_id}"
