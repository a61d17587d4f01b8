"""The shapes of what is said about a node's life: drain, key, agent (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape


class DrainAnswer(ResponseShape):
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


class LifeAnswer(ResponseShape):
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
    images_mib = s.IntegerField(
        allow_null=True, help_text="What images of jobs take there; null: its agent does not say."
    )
    image_limit_mib = s.IntegerField(
        allow_null=True, help_text="What they may take; null: no limit is known."
    )
    leases = s.IntegerField(help_text="Leases that a new enrolment would touch.")


class NewDeviceEntry(ResponseShape):
    """A device that waits for an operator, as its node says it is."""

    uuid = s.CharField()
    index = s.IntegerField()
    model = s.CharField()
    memory_mib = s.IntegerField(allow_null=True)
    was_model = s.CharField(allow_null=True, help_text="As what it was accepted before; null: it is new.")
    was_memory_mib = s.IntegerField(allow_null=True)


class AcceptanceAnswer(ResponseShape):
    """What of a node waits for an operator before it serves people."""

    node = s.CharField()
    is_accepted = s.BooleanField(help_text="Nothing waits.")
    is_ahead = s.BooleanField(
        help_text="Its agent has seen a later state than this database and is told nothing for now."
    )
    devices = NewDeviceEntry(many=True)
    unknown_leases = s.ListField(
        child=s.CharField(), help_text="Leases that it carries and this database does not know: they end."
    )
    seen = s.CharField(help_text="The name of this very list, to accept it and nothing else.")
