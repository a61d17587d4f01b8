"""The shapes of answers about alerts, their rules and silences."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.alerts.models import (
    AlertAction,
    AlertAudience,
    AlertComparison,
    AlertGrouping,
    AlertSeverity,
    AlertState,
)
from portal.api.responses import ResponseShape


class AlertMetricAnswer(ResponseShape):
    """Something that a rule can watch."""

    metric = s.CharField()
    says = s.CharField()
    unit = s.CharField(allow_blank=True, help_text="%, °C, W, s; empty: a number.")
    of = s.CharField(help_text="device, node, team, flavor or fleet.")
    usual = s.FloatField(help_text="A threshold to begin with.")


class AlertRuleAnswer(ResponseShape):
    """A condition, how long it has to hold, and what comes of it."""

    id = s.IntegerField()
    name = s.CharField(allow_blank=True, help_text="Empty: the condition is its name.")
    condition = s.CharField(help_text="As a sentence.")
    metric = s.CharField()
    comparison = s.ChoiceField(AlertComparison.choices)
    threshold = s.FloatField()
    for_s = s.IntegerField()
    severity = s.ChoiceField(AlertSeverity.choices)
    team = s.SlugField(allow_null=True)
    node = s.CharField(allow_null=True)
    device_model = s.SlugField(allow_null=True)
    audience = s.ChoiceField(AlertAudience.choices, help_text="Who is told of what is about a team.")
    grouping = s.ChoiceField(AlertGrouping.choices)
    escalate_min = s.IntegerField(allow_null=True)
    escalate_to = s.CharField(allow_null=True, help_text="Null: all operators.")
    action = s.ChoiceField(AlertAction.choices)
    is_on = s.BooleanField()
    evaluated_at = s.DateTimeField(allow_null=True)
    matched = s.IntegerField(help_text="How many subjects it meant at the last look.")
    folded = s.IntegerField(help_text="How many of them have no alert of their own.")


class AlertAnswer(ResponseShape):
    """That a rule's condition holds, or held, for one subject."""

    id = s.CharField()
    rule = s.IntegerField()
    rule_name = s.CharField()
    severity = s.ChoiceField(AlertSeverity.choices)
    state = s.ChoiceField(AlertState.choices)
    about = s.CharField()
    node = s.CharField(allow_null=True)
    device = s.CharField(allow_null=True, help_text="The device's uuid.")
    team = s.SlugField(
        allow_null=True, help_text="The team that it is about; of a device, the one that held it alone."
    )
    value = s.FloatField()
    evidence = s.CharField(help_text="The figure and the condition as a sentence.")
    pending_at = s.DateTimeField()
    firing_at = s.DateTimeField(allow_null=True)
    resolved_at = s.DateTimeField(allow_null=True)
    silence = s.CharField(allow_null=True, help_text="The silence that holds for it now.")
    acknowledged_by = s.CharField(allow_null=True)
    acknowledged_at = s.DateTimeField(allow_null=True)
    escalated_at = s.DateTimeField(allow_null=True)
    acted_at = s.DateTimeField(allow_null=True, help_text="When the rule's action was done.")
    paused_until = s.DateTimeField(
        allow_null=True, help_text="Nothing new starts there until then at least; null: it is not paused."
    )
    held_back_at = s.DateTimeField(allow_null=True, help_text="When it was not, for there had been too many.")


class SilenceAnswer(ResponseShape):
    """A time in which nobody is told of some alerts."""

    id = s.CharField()
    rule = s.IntegerField(allow_null=True)
    node = s.CharField(allow_null=True)
    team = s.SlugField(allow_null=True)
    reason = s.CharField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    made_by = s.CharField()
