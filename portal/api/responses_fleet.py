"""The shapes of what is said about nodes and devices (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from nodeagent.protocol.limits import ACTIONS
from portal.api.responses import ResponseShape


class HealthEntry(ResponseShape):
    """Something a device, or a node as a whole, said about its health that nobody has cleared."""

    code = s.CharField()
    severity = s.CharField()
    detail = s.CharField()
    action = s.ChoiceField(ACTIONS, help_text="What somebody has to do about it; empty is unknown.")
    means = s.CharField(allow_blank=True, help_text="What the code means, in the reader's language.")
    todo = s.CharField(allow_blank=True, help_text="The action as a sentence, in the reader's language.")
    starts = s.ListField(
        child=s.IntegerField(),
        allow_null=True,
        help_text="Where the MIG slices begin that it hits; null: the whole device, or that is not known.",
    )
    at = s.DateTimeField()
    unreported_at = s.DateTimeField(
        allow_null=True, help_text="Since when the agent reports it no more; null: it still does."
    )
    until = s.DateTimeField(
        allow_null=True, help_text="When Berth itself closes it; null: the agent or an operator does."
    )


class NodeAnswer(ResponseShape):
    """A node. The fields from `epoch` on are for operators and absent for others."""

    name = s.CharField()
    state = s.ChoiceField(("online", "stale", "offline", "never"))
    is_cordoned = s.BooleanField()
    is_accepted = s.BooleanField(help_text="Nothing of it waits for an operator (docs/nodes.md).")
    drain = s.ChoiceField(
        ("", "draining", "overdue", "drained"), help_text="How far its drain is; empty: none."
    )
    drain_by = s.DateTimeField(allow_null=True, help_text="When it has to be empty.")
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
    health_events = HealthEntry(many=True, required=False, help_text="Of the node as a whole.")


class DeviceAnswer(ResponseShape):
    """An accelerator. The fields from `pci_bus_id` on are for operators and absent for others."""

    uuid = s.CharField()
    node = s.CharField()
    index = s.IntegerField()
    model = s.CharField()
    memory_mib = s.IntegerField()
    modes = s.ListField(child=s.CharField())
    profiles = s.ListField(
        child=s.CharField(), help_text="MIG sizes as the driver of this device names them (docs/mig.md)."
    )
    health = s.CharField()
    is_accepted = s.BooleanField(help_text="Nothing is placed on a device that waits for an operator.")
    pci_bus_id = s.CharField(required=False, allow_blank=True)
    health_reason = s.CharField(required=False, allow_blank=True)
    health_events = HealthEntry(many=True, required=False)
    refusals = s.DictField(
        child=s.CharField(),
        required=False,
        help_text="By mode that it cannot offer: what to install or allow.",
    )


class ProcessEntry(ResponseShape):
    """A process that a device listed; `held`, `open`, `orphan` or `system` (docs/health.md)."""

    pid = s.IntegerField()
    device = s.CharField()
    state = s.CharField()
    lease = s.CharField(allow_blank=True)
    name = s.CharField(allow_blank=True)
    memory_mib = s.IntegerField(allow_null=True)


class ProcessesAnswer(ResponseShape):
    """What a node's devices listed last; null is unknown."""

    node = s.CharField()
    at = s.DateTimeField(allow_null=True)
    orphans = s.IntegerField(allow_null=True)
    processes = ProcessEntry(many=True, allow_null=True)


class Enrolment(ResponseShape):
    """A node and the secret with which its agent introduces itself once, within 15 minutes."""

    node = s.CharField()
    secret = s.CharField(allow_null=True, help_text="Shown once.")
    leases_at_stake = s.IntegerField(
        help_text="Leases on it now: they are lost if its agent enrols without its state folder (docs/nodes.md)."
    )


class MapAnswer(ResponseShape):
    """The cluster drawn to scale: nodes, devices, slots."""

    nodes = s.ListField(child=s.DictField())
