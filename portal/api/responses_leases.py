"""The shapes of answers about leases: what they hold, how they are entered and what they use."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import EventAnswer, Money, ResponseShape
from portal.leases.states import EndReason, LeaseState, Opening


class LeaseEventAnswer(EventAnswer):
    """One step of a lease, in a feed."""

    lease = s.CharField()


class LeaseAnswer(ResponseShape):
    """The right to hold slices on one node for a time."""

    id = s.CharField()
    request = s.CharField()
    state = s.ChoiceField(LeaseState.choices)
    team = s.SlugField()
    user = s.CharField()
    flavor = s.SlugField()
    count = s.IntegerField()
    node = s.CharField()
    share_milli = s.IntegerField()
    starts_at = s.DateTimeField()
    not_after = s.DateTimeField()
    activated_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True)
    clean_at = s.DateTimeField(allow_null=True)
    end_reason = s.ChoiceField(EndReason.choices)
    warned_at = s.DateTimeField(allow_null=True)
    seconds_left = s.IntegerField(allow_null=True)
    part = s.IntegerField(help_text="Counts the leases of one request that live together, from 0.")
    is_extra = s.BooleanField(help_text="Grown into idle devices; ends with its base at the latest.")
    cut_by = s.CharField(
        allow_blank=True, help_text="What made it shorter than asked: maintenance, booking or waiting."
    )
    is_preemptible = s.BooleanField(help_text="It may be preempted, for a lower price.")
    preempt_at = s.DateTimeField(
        allow_null=True, help_text="When it must go to make room; null while it may stay."
    )
    preempt_why = s.CharField(
        allow_blank=True,
        help_text="Why it must go: reclaim, priority, elastic or idle; empty while it may stay.",
    )
    opens = s.ChoiceField(Opening.choices, help_text="What was asked for to open in it.")
    cost_so_far = Money(allow_null=True)


class Slot(ResponseShape):
    """A slice held by a lease."""

    device = s.CharField()
    device_index = s.IntegerField()
    mode = s.CharField()
    profile = s.CharField(allow_blank=True)
    start = s.IntegerField()
    size = s.IntegerField()
    share_milli = s.IntegerField()
    memory_mib = s.IntegerField()


class PartAnswer(ResponseShape):
    """One of the leases of a request that live together."""

    id = s.CharField()
    part = s.IntegerField()
    node = s.CharField()
    count = s.IntegerField()
    state = s.ChoiceField(LeaseState.choices)
    is_extra = s.BooleanField()


class ExtensionAnswer(ResponseShape):
    """More time that was asked for a lease and waits for an approver."""

    state = s.CharField(help_text="awaiting_approval.")
    extra_s = s.IntegerField()
    until = s.DateTimeField(help_text="When the lease would end then.")
    asked_by = s.CharField()
    asked_at = s.DateTimeField()


class LeaseDetail(LeaseAnswer):
    """A lease with its slices, and all leases that live together with it (itself too)."""

    price_per_hour = Money(allow_null=True)
    fault = s.CharField(allow_blank=True, help_text="Why it failed, in the reader's language.")
    fault_code = s.CharField(allow_blank=True, help_text="The node's word for it.")
    fault_detail = s.CharField(allow_blank=True, help_text="What the node said, for operators alone.")
    agent_active_ms = s.IntegerField(allow_null=True)
    policy_version = s.IntegerField()
    demand_version = s.IntegerField()
    latest_end = s.DateTimeField(
        allow_null=True, help_text="Until when it could be extended at most; null while it does not run."
    )
    latest_end_because = s.CharField(allow_blank=True, help_text="booking, maintenance or flavor.")
    extension = ExtensionAnswer(allow_null=True)
    can_manage = s.BooleanField()
    can_see_access = s.BooleanField()
    slots = Slot(many=True)
    parts = PartAnswer(many=True)


class AccessSlot(ResponseShape):
    """How the holder reaches one slice."""

    device = s.CharField()
    partition = s.CharField(allow_blank=True)
    environment = s.DictField(child=s.CharField())
    device_nodes = s.ListField(child=s.CharField())


class EntranceAnswer(ResponseShape):
    """How a lease is entered on its node, as far as its agent said; empty is none, null is unknown."""

    runtime = s.CharField(allow_blank=True)
    unit = s.CharField(allow_blank=True)
    cdi = s.CharField(allow_blank=True, help_text="Name for `docker run --device` and `podman run --device`.")
    env_file = s.CharField(allow_blank=True)
    is_isolated = s.BooleanField(
        allow_null=True, help_text="Whether the node keeps other leases' devices out of it."
    )
    scratch = s.CharField(allow_blank=True, help_text="The lease's own folder on its node; it goes with it.")
    scratch_gib = s.IntegerField(allow_null=True, help_text="What it may hold; null: no limit, or unknown.")
    data_sets = s.CharField(allow_blank=True, help_text="Where the team's data sets are, to be read.")
    job = s.CharField(allow_blank=True, help_text="Its job in the cluster; empty on a host of its own.")
    host = s.CharField(allow_blank=True, help_text="Where the job runs; empty while it waits.")
    reason = s.CharField(allow_blank=True, help_text="The cluster's own word for why the job waits.")
    commands = s.ListField(child=s.CharField())


class AccessAnswer(ResponseShape):
    """How the holder reaches the slices of a lease."""

    node = s.CharField()
    entrance = EntranceAnswer()
    environment = s.DictField(
        child=s.CharField(),
        help_text="Of the whole lease: all its devices as one variable, and the nodes of its gang.",
    )
    slots = AccessSlot(many=True)


class TerminalTicketAnswer(ResponseShape):
    """The way into a terminal."""

    ticket = s.CharField(
        help_text="The first word on the socket; null in a repeated answer.", allow_null=True
    )
    good_for_s = s.IntegerField()
    gateways = s.ListField(child=s.CharField(), help_text="WebSocket addresses; any of them will do.")


class SampleAnswer(ResponseShape):
    """The newest sample of a lease; null is unknown."""

    at = s.DateTimeField(allow_null=True)
    util_percent = s.FloatField(allow_null=True)
    memory_used_mib = s.IntegerField(allow_null=True)
    memory_mib = s.IntegerField(allow_null=True)
    sm_percent = s.FloatField(allow_null=True, help_text="Part of the multiprocessors at work.")
    tensor_percent = s.FloatField(allow_null=True, help_text="Part of the tensor cores at work.")
    bandwidth_percent = s.FloatField(allow_null=True, help_text="Part of the memory's bandwidth used.")
    power_w = s.FloatField(allow_null=True, help_text="Measured for whole boards, else an estimate.")
    source = s.CharField(allow_blank=True)  # type: ignore[assignment]
    sources = s.DictField(child=s.CharField(), help_text="Where other values came from, by field.")
