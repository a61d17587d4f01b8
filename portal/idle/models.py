from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from portal.catalog.models import Flavor
from portal.leases.models import Lease
from portal.teams.models import Team

MOST_SNOOZES = 10
DAY_MIN = 1440


class IdleState(models.TextChoices):
    """What a lease does, as far as was measured."""

    BUSY = "busy", _("At work")
    HELD_IDLE = "held_idle", _("Held idle")
    EMPTY = "empty", _("Empty")
    UNKNOWN = "unknown", _("Unknown")


class IdleAction(models.TextChoices):
    """What happens to a lease that idles."""

    NOTHING = "nothing", _("Nothing, it is only shown")
    WARN = "warn", _("Its holder is told")
    RECLAIM = "reclaim", _("Its holder is told, then it is taken back")


IDLE = (IdleState.HELD_IDLE, IdleState.EMPTY)


class IdleRule(models.Model):
    """After how long without work what happens, for a team and those below it, a flavor, both, or everything.

    ``grace_min`` lies between the notice and the end. The holder may put it off ``snoozes`` times, each for
    ``snooze_min``. Where there is no rule for a lease nothing happens to it.
    """

    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.PROTECT, related_name="idle_rules")
    flavor = models.ForeignKey(
        Flavor, null=True, blank=True, on_delete=models.PROTECT, related_name="idle_rules"
    )
    after_min = models.PositiveSmallIntegerField(default=60)
    then = models.CharField(max_length=10, choices=IdleAction.choices, default=IdleAction.NOTHING)
    grace_min = models.PositiveSmallIntegerField(default=30)
    snoozes = models.PositiveSmallIntegerField(default=2)
    snooze_min = models.PositiveSmallIntegerField(default=60)
    changed_at = models.DateTimeField()
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["team", "flavor"], name="idle_rule_once", nulls_distinct=False),
            models.CheckConstraint(condition=Q(then__in=IdleAction.values), name="idle_rule_action_known"),
            models.CheckConstraint(
                condition=Q(after_min__gte=15, after_min__lte=240), name="idle_rule_after_sane"
            ),
            models.CheckConstraint(
                condition=Q(grace_min__gte=5, grace_min__lte=DAY_MIN), name="idle_rule_leaves_time"
            ),
            models.CheckConstraint(
                condition=Q(snoozes__lte=MOST_SNOOZES, snooze_min__gte=5, snooze_min__lte=DAY_MIN),
                name="idle_rule_snoozes_bounded",
            ),
        ]

    def __str__(self) -> str:
        return f"after {self.after_min} min: {self.then}"


class IdleStanding(models.Model):
    """What a running lease was last judged to do, by what, and what comes of it: pages and sweeper read the same row.

    ``since`` is when it came into this state; of the last ``minutes`` ``known`` were measured and ``worked`` were work.
    ``then`` is what its rule says, "" without one. ``reclaim_at`` is when it is taken back as things stand,
    ``warned_at`` when its holder was told. Figures are means of the window, memory the most of it; null is unknown.
    """

    lease = models.OneToOneField(Lease, primary_key=True, on_delete=models.CASCADE, related_name="idle")
    state = models.CharField(max_length=10, choices=IdleState.choices)
    why = models.CharField(max_length=12)
    since = models.DateTimeField()
    judged_at = models.DateTimeField()
    minutes = models.PositiveSmallIntegerField()
    known = models.PositiveSmallIntegerField()
    worked = models.PositiveSmallIntegerField(default=0)
    util = models.FloatField(null=True)
    sm = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    memory_mib = models.PositiveIntegerField(null=True)
    processes = models.PositiveIntegerField(null=True)
    then = models.CharField(max_length=10, choices=IdleAction.choices, blank=True, default="")
    warned_at = models.DateTimeField(null=True)
    reclaim_at = models.DateTimeField(null=True)
    snoozed_until = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=IdleState.values), name="idle_state_known"),
            models.CheckConstraint(condition=Q(since__lte=F("judged_at")), name="idle_since_before_now"),
            models.CheckConstraint(
                condition=Q(known__lte=F("minutes"), worked__lte=F("known")), name="idle_minutes_add_up"
            ),
            models.CheckConstraint(
                condition=Q(state__in=IDLE) | Q(warned_at=None, reclaim_at=None, snoozed_until=None),
                name="only_idle_is_taken_back",
            ),
            models.CheckConstraint(
                condition=Q(reclaim_at=None) | Q(then=IdleAction.RECLAIM), name="taken_back_by_a_rule"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.state}"


class IdleSnooze(models.Model):
    """One time that somebody put off what an idle lease has coming. Numbered from 1 in each lease; never changed."""

    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="snoozes", db_index=False)
    ordinal = models.PositiveSmallIntegerField()
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    at = models.DateTimeField()
    until = models.DateTimeField()
    reason = models.CharField(max_length=300)

    class Meta:
        ordering = ["lease", "ordinal"]
        constraints = [
            models.UniqueConstraint(fields=["lease", "ordinal"], name="idle_snooze_once"),
            models.CheckConstraint(
                condition=Q(ordinal__gte=1, ordinal__lte=MOST_SNOOZES), name="idle_snoozes_counted"
            ),
            models.CheckConstraint(condition=Q(until__gt=F("at")), name="idle_snooze_lasts"),
            models.CheckConstraint(condition=~Q(reason=""), name="idle_snooze_says_why"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} #{self.ordinal}"
