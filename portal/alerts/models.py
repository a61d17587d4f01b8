from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.common.ids import alert_uid, silence_uid
from portal.fleet.models import Device, DeviceModel, Node
from portal.teams.models import Team

# A figure beyond it is no threshold of anything that is measured here; it keeps NaN and infinity out as well.
MOST_THRESHOLD = 1e12
MOST_FOR_S = 86_400
MOST_ESCALATE_MIN = 10_080


class AlertSeverity(models.TextChoices):
    """How bad it is. What is information is shown and told to nobody."""

    INFO = "info", pgettext_lazy("alert", "Information")
    WARNING = "warning", pgettext_lazy("alert", "Warning")
    CRITICAL = "critical", pgettext_lazy("alert", "Critical")


class AlertComparison(models.TextChoices):
    """On which side of its threshold a rule alerts."""

    ABOVE = "above", pgettext_lazy("alert", "above")
    BELOW = "below", pgettext_lazy("alert", "below")


class AlertState(models.TextChoices):
    """The life of an alert: its condition holds, has held for long enough, holds no more."""

    PENDING = "pending", pgettext_lazy("alert", "Pending")
    FIRING = "firing", pgettext_lazy("alert", "Firing")
    RESOLVED = "resolved", pgettext_lazy("alert", "Resolved")


class AlertAction(models.TextChoices):
    """What Berth does by itself when an alert fires."""

    NOTHING = "nothing", pgettext_lazy("alert", "Nothing, people are told")
    CORDON = "cordon", _("The node is cordoned")
    QUARANTINE = "quarantine", _("The device goes into quarantine")
    PAUSE = "pause", _("Nothing new starts there while the alert lasts")


class AlertGrouping(models.TextChoices):
    """Which alerts of a rule are told in one notification."""

    RULE = "rule", _("All of the rule")
    NODE = "node", _("Those of a node")
    TEAM = "team", _("Those of a team")


class AlertAudience(models.TextChoices):
    """Who is told of what a rule finds about a team. What is of no team is told to operators in any case."""

    OPERATORS = "operators", _("Operators")
    BOTH = "both", _("Operators and the admins of the team")
    TEAM = "team", _("The admins of the team")


TELLS_TEAMS = (AlertAudience.BOTH, AlertAudience.TEAM)


class AlertRule(models.Model):
    """A condition over a metric of ``portal.alerts.metrics`` that has to hold for ``for_s``, and what comes of it.

    ``name`` "" shows the condition itself. ``team`` (with those below it), ``node`` and ``device_model`` narrow it to
    some subjects. ``audience`` is who is told, and whether admins of a team see what is about it. After
    ``escalate_min`` without anybody acknowledging it ``escalate_to`` is told as well (None: all operators; minutes
    None: nobody). Of what it matched last ``folded`` have no alert of their own, because a rule has at most so many. A
    rule that is removed keeps its history.
    """

    name = models.CharField(max_length=80, blank=True)
    metric = models.CharField(max_length=40)
    comparison = models.CharField(max_length=5, choices=AlertComparison.choices)
    threshold = models.FloatField()
    for_s = models.PositiveIntegerField(default=0)
    severity = models.CharField(max_length=8, choices=AlertSeverity.choices, default=AlertSeverity.WARNING)
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    device_model = models.ForeignKey(
        DeviceModel, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    audience = models.CharField(max_length=10, choices=AlertAudience.choices, default=AlertAudience.OPERATORS)
    grouping = models.CharField(max_length=4, choices=AlertGrouping.choices, default=AlertGrouping.RULE)
    escalate_min = models.PositiveSmallIntegerField(null=True, blank=True)
    escalate_to = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    action = models.CharField(max_length=10, choices=AlertAction.choices, default=AlertAction.NOTHING)
    is_on = models.BooleanField(default=True)
    changed_at = models.DateTimeField()
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    removed_at = models.DateTimeField(null=True, blank=True)
    evaluated_at = models.DateTimeField(null=True, blank=True)
    matched = models.PositiveIntegerField(default=0)
    folded = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=~Q(name="") & Q(removed_at=None), name="alert_rule_name_once"
            ),
            models.CheckConstraint(
                condition=Q(threshold__gte=-MOST_THRESHOLD, threshold__lte=MOST_THRESHOLD),
                name="alert_threshold_sane",
            ),
            models.CheckConstraint(condition=Q(for_s__lte=MOST_FOR_S), name="alert_for_a_day_at_most"),
            models.CheckConstraint(
                condition=Q(
                    comparison__in=AlertComparison.values,
                    severity__in=AlertSeverity.values,
                    grouping__in=AlertGrouping.values,
                    action__in=AlertAction.values,
                    audience__in=AlertAudience.values,
                ),
                name="alert_rule_words_known",
            ),
            models.CheckConstraint(
                condition=Q(escalate_min=None) | Q(escalate_min__gte=1, escalate_min__lte=MOST_ESCALATE_MIN),
                name="alert_escalates_later",
            ),
            models.CheckConstraint(condition=Q(folded__lte=F("matched")), name="alert_folds_what_matched"),
        ]

    def __str__(self) -> str:
        return self.name or f"{self.metric} {self.comparison} {self.threshold:g}"


class Alert(models.Model):
    """That the condition of a rule holds for one subject, from when it was first seen until it held no more.

    ``subject`` is its key (``device:7``), ``about`` what people call it. ``team`` is the one that it is about, of a
    device the one that held it alone when the alert began. ``value`` is the figure as last kept,
    ``seen_at`` when. ``gone_at`` is since when the condition does not hold; a moment later the alert is resolved. While
    the figure is unknown nothing changes. ``notified_at``, ``escalated_at`` and ``end_told_at`` are when people were
    told. ``acted_at`` is when the rule's action was done, ``held_back_at`` when it was not, for there were too many.
    """

    uid = models.CharField(max_length=24, unique=True, default=alert_uid)
    rule = models.ForeignKey(AlertRule, on_delete=models.PROTECT, related_name="alerts", db_index=False)
    subject = models.CharField(max_length=100)
    about = models.CharField(max_length=160)
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    device = models.ForeignKey(
        Device, null=True, on_delete=models.CASCADE, related_name="alerts", db_index=False
    )
    team = models.ForeignKey(Team, null=True, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    state = models.CharField(max_length=8, choices=AlertState.choices)
    value = models.FloatField()
    pending_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    firing_at = models.DateTimeField(null=True)
    gone_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    notified_at = models.DateTimeField(null=True)
    escalated_at = models.DateTimeField(null=True)
    end_told_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    acted_at = models.DateTimeField(null=True)
    held_back_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pending_at", "-id"]
        indexes = [
            models.Index(fields=["rule"], name="alert_open", condition=Q(resolved_at=None)),
            models.Index(
                fields=["-resolved_at", "-id"], name="alert_history", condition=~Q(resolved_at=None)
            ),
            models.Index(
                fields=["team", "-resolved_at"],
                name="alert_history_of_a_team",
                condition=Q(team__isnull=False, resolved_at__isnull=False),
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"], condition=Q(resolved_at=None), name="alert_open_once"
            ),
            models.CheckConstraint(
                condition=Q(state=AlertState.PENDING, firing_at=None, resolved_at=None)
                | Q(state=AlertState.FIRING, firing_at__isnull=False, resolved_at=None)
                | Q(state=AlertState.RESOLVED, firing_at__isnull=False, resolved_at__isnull=False),
                name="alert_times_fit_its_state",
            ),
            models.CheckConstraint(
                condition=(Q(firing_at=None) | Q(firing_at__gte=F("pending_at")))
                & (Q(resolved_at=None) | Q(resolved_at__gte=F("firing_at"))),
                name="alert_runs_forward",
            ),
            models.CheckConstraint(
                condition=Q(acknowledged_at=None, acknowledged_by=None)
                | Q(acknowledged_at__isnull=False, acknowledged_by__isnull=False),
                name="alert_acknowledged_by_somebody",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.uid} {self.state}"


class AlertSilence(models.Model):
    """A time in which alerts of a rule, a node or a team (all that are named) are shown, but told to nobody.

    Nothing is done about them either. ``ended_at`` is when somebody ended it before its time.
    """

    uid = models.CharField(max_length=24, unique=True, default=silence_uid)
    rule = models.ForeignKey(
        AlertRule, null=True, blank=True, on_delete=models.CASCADE, related_name="silences", db_index=False
    )
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    reason = models.CharField(max_length=200)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        ordering = ["ends_at", "id"]
        indexes = [models.Index(fields=["ends_at"], name="silence_live", condition=Q(ended_at=None))]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="silence_ends_later"),
            models.CheckConstraint(condition=~Q(reason=""), name="silence_says_why"),
            models.CheckConstraint(
                condition=Q(rule__isnull=False) | Q(node__isnull=False) | Q(team__isnull=False),
                name="silence_of_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.uid} until {self.ends_at}"
