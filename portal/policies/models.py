from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class Policy(models.Model):
    """A version of the rules the engine decides by; exactly one is active.

    Versions are never changed: an edit, and a step back to ``based_on``, make a new one. ``activated_at`` is
    when it was last put in force (None: never).
    """

    name = models.CharField(max_length=60)
    version = models.PositiveIntegerField(unique=True)
    body = models.JSONField(default=dict)
    is_active = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    note = models.CharField(max_length=200, blank=True)
    based_on = models.PositiveIntegerField(null=True, blank=True)
    activated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-version"]
        verbose_name_plural = "policies"
        constraints = [
            models.UniqueConstraint(
                fields=["is_active"], condition=Q(is_active=True), name="one_active_policy"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class DemandTable(models.Model):
    """What requests looked like at ``made_at``: forms with their number, and the solved price of each size.

    ``used_milli`` is the part of the fleet that was in use then.
    Placement goes by the newest version; leases name the one that placed them, so rows are kept.
    """

    version = models.PositiveIntegerField(unique=True)
    forms = models.JSONField()
    prices = models.JSONField()
    requests = models.PositiveIntegerField()
    churn_milli = models.PositiveSmallIntegerField(default=0)
    used_milli = models.PositiveSmallIntegerField(default=0)
    made_at = models.DateTimeField()

    class Meta:
        ordering = ["-version"]
        constraints = [models.CheckConstraint(condition=Q(version__gte=1), name="demand_version_positive")]

    def __str__(self) -> str:
        return f"v{self.version} of {self.requests} requests"


class DurationModel(models.Model):
    """What was learned about how long requests run: lengths for the engine's order, and how well it predicts.

    ``curves`` is an object of ``lengths``, rows of (team id, size group, probability per bin of the length), and
    ``errors``, counts by how many bins predictions were off (``scheduler.engine.learning.lengths``).
    ``trees`` is the predictor itself as plain
    numbers (``scheduler.engine.learning.trees``). ``figures`` compares the errors of the
    predictor, the person's own estimate and the team's average on requests it was not trained on.
    """

    version = models.PositiveIntegerField(unique=True)
    curves = models.JSONField(default=list)
    trees = models.JSONField(default=dict, blank=True)
    figures = models.JSONField(default=dict)
    requests = models.PositiveIntegerField()
    made_at = models.DateTimeField()

    class Meta:
        ordering = ["-version"]
        constraints = [models.CheckConstraint(condition=Q(version__gte=1), name="duration_version_positive")]

    def __str__(self) -> str:
        return f"v{self.version} of {self.requests} requests"
