from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

# A cause as a number: PostgreSQL excludes ranges of numbers without an extension, texts only with one.
_CAUSE = Cast(Func(F("cause"), function="hashtext"), models.BigIntegerField())


class RefundCause(models.TextChoices):
    """Why a rule may refund a lease: why its money clock stopped, or that it started later than was promised."""

    NODE_LOST = "node_lost", _("Node lost")
    DEVICE_FAULT = "device_fault", _("Device fault")
    FAILED_START = "failed_start", _("Failed soon after its start")
    MAINTENANCE = "maintenance", _("Maintenance")
    PREEMPTED = "preempted", _("Preempted")
    EARLY_RELEASE = "early_release", pgettext_lazy("refund", "Released early")
    LATE_START = "late_start", _("Started later than promised")


class RefundRule(models.Model):
    """What a cause gives back, for leases that ended within ``valid``: ``credit_milli`` thousandths of the price.

    1000 is no charge at all, 0 the whole charge: a rule that ends the one before it. ``most_s`` bounds it to the last
    seconds before the money clock stopped; None is all of the lease. ``within_s`` is how soon after its start a lease
    has to fail for that to be a failed start. Once begun it can only be given an end.
    """

    cause = models.CharField(max_length=13, choices=RefundCause.choices)
    credit_milli = models.PositiveSmallIntegerField()
    most_s = models.PositiveIntegerField(null=True)
    within_s = models.PositiveIntegerField(null=True)
    valid = DateTimeRangeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["cause", "valid"]
        constraints = [
            ExclusionConstraint(
                name="one_refund_rule_at_a_time",
                expressions=[
                    (Func(_CAUSE, _CAUSE + 1, function="int8range"), RangeOperators.OVERLAPS),
                    ("valid", RangeOperators.OVERLAPS),
                ],
            ),
            models.CheckConstraint(condition=Q(cause__in=RefundCause.values), name="refund_cause_known"),
            models.CheckConstraint(
                condition=Q(credit_milli__lte=1000) & (Q(most_s=None) | Q(most_s__gte=1)),
                name="refund_is_a_part",
            ),
            models.CheckConstraint(
                condition=Q(cause=RefundCause.FAILED_START, within_s__gte=1, within_s__isnull=False)
                | (~Q(cause=RefundCause.FAILED_START) & Q(within_s=None)),
                name="refund_failed_start_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cause} {self.credit_milli}"
