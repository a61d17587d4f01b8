from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from portal.teams.models import Team


class Cohort(models.Model):
    """Teams that lend each other what they do not use of their guarantees."""

    name = models.CharField(max_length=80, unique=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Quota(models.Model):
    """A team's right to GPU share in weighted thousandths of a reference device, for its subtree.

    What a team of a cohort uses above its guarantee is borrowed; it lends at most ``lending_milli`` of what it
    does not use itself (None: all of it). ``most_duration_s`` is how long one lease may run, extensions counted in
    (None: as long as its flavor), ``gpu_seconds_a_month`` how many device seconds by share may fall into a month of the
    organisation's zone, and ``most_memory_mib`` how much device memory is held at once (None: no limit).

    ``used_milli`` counts what is live now and is changed only in the transaction that grants or
    frees, with the rows of the lineage locked in id order.
    """

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="quota")
    guaranteed_milli = models.PositiveBigIntegerField(default=0)
    ceiling_milli = models.PositiveBigIntegerField(null=True, blank=True)
    used_milli = models.BigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    lending_milli = models.PositiveBigIntegerField(null=True, blank=True)
    cohort = models.ForeignKey(Cohort, null=True, blank=True, on_delete=models.PROTECT, related_name="quotas")
    most_duration_s = models.PositiveBigIntegerField(null=True, blank=True)
    gpu_seconds_a_month = models.PositiveBigIntegerField(null=True, blank=True)
    most_memory_mib = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(used_milli__gte=0), name="quota_use_not_negative"),
            models.CheckConstraint(
                condition=Q(ceiling_milli=None) | Q(used_milli__lte=F("ceiling_milli")),
                name="quota_ceiling_holds",
            ),
            models.CheckConstraint(
                condition=Q(ceiling_milli=None) | Q(guaranteed_milli__lte=F("ceiling_milli")),
                name="quota_guarantee_below_ceiling",
            ),
            models.CheckConstraint(
                condition=Q(lending_milli=None) | Q(lending_milli__lte=F("guaranteed_milli")),
                name="quota_lends_what_it_has",
            ),
            models.CheckConstraint(
                condition=Q(most_duration_s=None) | Q(most_duration_s__gt=0), name="quota_run_time_positive"
            ),
            models.CheckConstraint(
                condition=Q(gpu_seconds_a_month=None) | Q(gpu_seconds_a_month__gt=0),
                name="quota_hours_positive",
            ),
            models.CheckConstraint(
                condition=Q(most_memory_mib=None) | Q(most_memory_mib__gt=0), name="quota_memory_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"quota of {self.team_id}"


class PriorityGrant(models.Model):
    """A team's requests go before others by so many steps, from one day until another."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="priority_grants")
    steps = models.SmallIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=200)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-starts_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at")), name="grant_ends_after_it_starts"
            ),
            models.CheckConstraint(condition=Q(steps__gte=1, steps__lte=100), name="grant_steps_sane"),
        ]

    def __str__(self) -> str:
        return f"{self.team_id} +{self.steps}"


class PersonUsage(models.Model):
    """What a person has used for a team, in weighted thousandths times seconds, decayed to ``as_of``."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="usages")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    used_milli_s = models.BigIntegerField(default=0)
    as_of = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="usage_once_per_person"),
            models.CheckConstraint(condition=Q(used_milli_s__gte=0), name="usage_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.team_id}"
