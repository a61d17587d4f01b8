"""The shapes of what is said about nodes and devices (see ``answers``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.answers import Shape


class NodeAnswer(Shape):
    """A node. The fields from `epoch` on are for operators and absent for others."""

    name = s.CharField()
    state = s.ChoiceField(("online", "stale", "offline", "never"))
    is_cordoned = s.BooleanField()
    device_count = s.IntegerField()
    device_models = s.ListField(child=s.CharField())
    site = s.CharField(allow_blank=True)
    rack = s.CharField(allow_blank=True)
    cpu_milli = s.IntegerField(
        allow_null=True, help_text="CPU that leases may take; null is unknown, no limit."
    )
    memory_mib = s.IntegerField(
        allow_null=True, help_text="Memory that leases may take; null is unknown, no limit."
    )
    last_seen_at = s.DateTimeField(allow_null=True)
    cordon_reason = s.CharField(required=False, allow_blank=True)
    epoch = s.IntegerField(required=False)
    desired_revision = s.IntegerField(required=False)
    observed_revision = s.IntegerField(required=False)
    boot_id = s.CharField(required=False, allow_blank=True)
    agent_version = s.CharField(required=False, allow_blank=True)
    driver = s.CharField(required=False, allow_blank=True)
    driver_version = s.CharField(required=False, allow_blank=True)
    enrolled_at = s.DateTimeField(required=False, allow_null=True)


class HealthEntry(Shape):
    """Something a device said about its health that nobody has cleared."""

    code = s.CharField()
    severity = s.CharField()
    detail = s.CharField()
    at = s.DateTimeField()


class DeviceAnswer(Shape):
    """An accelerator. The fields from `pci_bus_id` on are for operators and absent for others."""

    uuid = s.CharField()
    node = s.CharField()
    index = s.IntegerField()
    model = s.CharField()
    memory_mib = s.IntegerField()
    modes = s.ListField(child=s.CharField())
    health = s.CharField()
    pci_bus_id = s.CharField(required=False, allow_blank=True)
    health_reason = s.CharField(required=False, allow_blank=True)
    health_events = HealthEntry(many=True, required=False)


class Enrolment(Shape):
    """A node and the secret with which its agent introduces itself once, within 15 minutes."""

    node = s.CharField()
    secret = s.CharField(allow_null=True, help_text="Shown once.")


class MapAnswer(Shape):
    """The cluster drawn to scale: nodes, devices, slots."""

    nodes = s.ListField(child=s.DictField())
