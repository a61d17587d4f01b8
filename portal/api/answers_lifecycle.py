"""The shapes of what is said about a node's life: drain, key, agent (see ``answers``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.answers import Shape


class DrainAnswer(Shape):
    """How far a node is from being empty. All is null or empty while it is not being drained."""

    node = s.CharField()
    drain = s.ChoiceField(
        ("", "draining", "overdue", "drained"),
        help_text="overdue: its time has passed and something is still there; drained: nothing is.",
    )
    by = s.DateTimeField(allow_null=True, help_text="When it has to be empty.")
    reason = s.CharField(allow_blank=True)
    asked_at = s.DateTimeField(allow_null=True)
    drained_at = s.DateTimeField(allow_null=True)
    leases = s.ListField(child=s.CharField(), help_text="Leases that still stand on it, also while cleaned.")


class LifeAnswer(Shape):
    """A node's key and agent."""

    node = s.CharField()
    enrolled_at = s.DateTimeField(allow_null=True)
    key_changed_at = s.DateTimeField(allow_null=True, help_text="Since when its key is in force; null: none.")
    key_age_s = s.IntegerField(allow_null=True)
    key_change_asked_at = s.DateTimeField(
        allow_null=True, help_text="Set while a new key is wanted and not here."
    )
    can_change_key = s.BooleanField(help_text="Its agent understands how.")
    agent_version = s.CharField(allow_blank=True)
    runtime = s.CharField(allow_null=True, help_text="How its agent lets holders in; null is unknown.")
    features = s.ListField(
        child=s.CharField(), help_text="What its agent understands beside version 1 of the protocol."
    )
    leases = s.IntegerField(help_text="Leases that a new enrolment would touch.")
