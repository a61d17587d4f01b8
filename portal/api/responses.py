"""The shapes of answers, for the schema; the values are shaped by plain functions beside the views.

A test checks every answer of the API against these.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from portal.accounts.models import Scope
from portal.billing.models import PeriodState
from portal.leases.states import EndReason, LeaseState
from portal.teams.models import Role


class ResponseShape(s.Serializer[Any]):
    """An answer."""


class ProblemEntry(ResponseShape):
    """One value that cannot be used."""

    field = s.CharField()
    code = s.CharField()
    detail = s.CharField()


class Problem(ResponseShape):
    """A refusal (RFC 9457): branch on `code`, show `detail` and `next`."""

    type = s.CharField()
    title = s.CharField()
    status = s.IntegerField()
    code = s.CharField()
    detail = s.CharField()
    next = s.CharField()
    instance = s.CharField()
    request_id = s.CharField()
    errors = ProblemEntry(many=True, required=False)  # type: ignore[assignment]
    facts = s.DictField(required=False)


class Money(ResponseShape):
    """An exact amount: a decimal string and its currency."""

    amount = s.RegexField(r"^-?\d+\.\d{2,6}$")
    currency = s.RegexField(r"^[A-Z]{3}$")


class RoleHeld(ResponseShape):
    """A role and the team it is held on; it reaches every team below."""

    team = s.SlugField()
    role = s.ChoiceField(Role.choices)


class Me(ResponseShape):
    """Who calls and what they may do."""

    username = s.CharField()
    display_name = s.CharField()
    roles = RoleHeld(many=True)
    teams = s.ListField(child=s.SlugField(), help_text="Teams for which this person may ask.")
    token_scopes = s.ListField(child=s.ChoiceField(Scope.choices), allow_null=True)
    unread_notifications = s.IntegerField()


class TeamRow(ResponseShape):
    """A team."""

    slug = s.SlugField()
    name = s.CharField()
    parent = s.SlugField(allow_null=True)  # type: ignore[assignment]
    cost_centre = s.CharField(allow_blank=True)
    approval_above_gpu_seconds = s.IntegerField(
        allow_null=True, help_text="A larger request needs an approval; null: none does."
    )


class Room(ResponseShape):
    """What a team could still be granted now, in thousandths of a reference GPU; null is without limit."""

    used_milli = s.IntegerField()
    guaranteed_milli = s.IntegerField()
    ceiling_milli = s.IntegerField(allow_null=True)
    left_milli = s.IntegerField(allow_null=True)
    bound_by = s.CharField(allow_blank=True, help_text="The team above (or itself) whose ceiling binds.")


class TeamDetail(TeamRow):
    """A team with its room, spend and work."""

    headroom = Room()
    spend = Money(help_text="This month so far, running leases included.")
    monthly_budget = Money(allow_null=True)
    live_leases = s.IntegerField()
    waiting_requests = s.IntegerField()
    children = s.ListField(child=s.SlugField())


class Member(ResponseShape):
    """A person's role in a team."""

    username = s.CharField()
    display_name = s.CharField()
    role = s.ChoiceField(Role.choices)
    since = s.DateTimeField()


class CohortName(ResponseShape):
    """A cohort by name."""

    id = s.IntegerField()
    name = s.CharField()


class QuotaAnswer(ResponseShape):
    """A team's right to GPU share, in thousandths of a reference GPU."""

    guaranteed_milli = s.IntegerField()
    ceiling_milli = s.IntegerField(allow_null=True)
    used_milli = s.IntegerField()
    lending_milli = s.IntegerField(allow_null=True, help_text="The most it lends; null: all it does not use.")
    cohort = CohortName(allow_null=True)
    version = s.IntegerField()


class SpendAnswer(ResponseShape):
    """What a team and the teams below it cost in a month."""

    month = s.CharField()
    total = Money()
    teams = s.ListField(child=s.DictField())


class FlavorAnswer(ResponseShape):
    """What can be asked for."""

    slug = s.SlugField()
    name = s.CharField()
    summary = s.CharField(allow_blank=True)
    device_model = s.CharField()
    mode = s.CharField()
    profile = s.CharField(allow_blank=True)
    share_milli = s.IntegerField()
    memory_mib = s.IntegerField()
    max_memory_mib = s.IntegerField(
        help_text="What a share may use where its board has it; 0 is no more than memory_mib."
    )
    cpu_milli = s.IntegerField(help_text="Thousandths of a core set aside per unit; 0 is none.")
    host_memory_mib = s.IntegerField(help_text="Main memory set aside per unit; 0 is none.")
    max_count = s.IntegerField()
    min_duration_s = s.IntegerField()
    max_duration_s = s.IntegerField()
    preemptible_milli = s.IntegerField(help_text="What is paid of the price by who may be preempted.")
    is_active = s.BooleanField(help_text="Whether it can be asked for.")
    price_per_hour = Money(allow_null=True)
    free = s.IntegerField(allow_null=True, help_text="How many could start now; null is unknown.")


class EventAnswer(ResponseShape):
    """One step of a request or a lease."""

    was = s.CharField()
    now = s.CharField()
    at = s.DateTimeField()
    reason = s.CharField(allow_blank=True)


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
        allow_blank=True, help_text="Why it must go: reclaim, priority or elastic; empty while it may stay."
    )
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


class UsageAnswer(ResponseShape):
    """A billed interval in whole seconds, under one rate."""

    id = s.IntegerField()
    lease = s.CharField()
    team = s.SlugField()
    user = s.CharField()
    flavor = s.SlugField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    seconds = s.IntegerField()
    share_milli = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    price_per_hour = Money(help_text="Of a whole device.")
    adjusts = s.CharField(allow_null=True, help_text="The earlier, closed month that it belongs to.")


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


class RateAnswer(ResponseShape):
    """The price of a whole device for an hour, while it is in force."""

    id = s.IntegerField()
    device_model = s.CharField()
    price_per_hour = Money()
    valid_from = s.DateTimeField(allow_null=True)
    valid_until = s.DateTimeField(allow_null=True)


class PeriodAnswer(ResponseShape):
    """A month of accounts."""

    month = s.CharField()
    state = s.ChoiceField(PeriodState.choices)
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    closed_at = s.DateTimeField(allow_null=True)


class CloseCheck(ResponseShape):
    """One thing to look at before a month is closed."""

    code = s.CharField()
    is_met = s.BooleanField()
    must = s.BooleanField(help_text="A must that is not met keeps the month open.")
    figure = s.IntegerField()
    sentence = s.CharField(help_text="How it stands, in the caller's language, with the places named.")


class PeriodDetail(PeriodAnswer):
    """A month with what has to hold before it is closed."""

    checks = CloseCheck(many=True)


class InvoiceRow(ResponseShape):
    """A team's month."""

    team = s.SlugField()
    month = s.CharField()
    number = s.CharField(allow_null=True)
    is_draft = s.BooleanField()
    total = Money()


class LineAnswer(ResponseShape):
    """One line: a person, a flavor and a price."""

    position = s.IntegerField()
    key = s.CharField()
    person = s.CharField()
    flavor = s.CharField()
    device_model = s.CharField()
    price_per_hour = Money()
    lease_count = s.IntegerField()
    seconds = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    amount = Money()
    adjusts = s.CharField(allow_null=True, help_text="The earlier, closed month that its usage belongs to.")


class InvoiceAnswer(InvoiceRow):
    """A team's month with its lines; `accruing` is what runs now and is on no line yet."""

    issued_at = s.DateTimeField(allow_null=True)
    cost_centre = s.CharField(allow_blank=True)
    accruing = Money()
    lines = LineAnswer(many=True)


class TokenAnswer(ResponseShape):
    """An API token without its secret."""

    id = s.IntegerField()
    name = s.CharField()
    prefix = s.CharField()
    scopes = s.ListField(child=s.ChoiceField(Scope.choices))
    created_at = s.DateTimeField()
    expires_at = s.DateTimeField()
    last_used_at = s.DateTimeField(allow_null=True)
    revoked_at = s.DateTimeField(allow_null=True)


class NewTokenAnswer(TokenAnswer):
    """A new token with its secret."""

    secret = s.CharField(allow_null=True, help_text="Shown once; keep it now.")


class SessionAnswer(ResponseShape):
    """A live browser session of one's own."""

    id = s.CharField()
    browser = s.CharField(allow_blank=True, help_text="As “Firefox · Linux”; empty where it is not known.")
    address = s.CharField(allow_blank=True, help_text="From where it signed in.")
    began_at = s.DateTimeField()
    seen_at = s.DateTimeField()
    ends_at = s.DateTimeField(help_text="If nothing more is heard of it.")
    is_current = s.BooleanField()


class PasswordAnswer(ResponseShape):
    """What went with the old password."""

    sessions_ended = s.IntegerField()
    tokens_revoked = s.IntegerField()


class NotificationAnswer(ResponseShape):
    """Something a person should know."""

    id = s.IntegerField()
    kind = s.CharField()
    target = s.CharField(allow_blank=True)
    facts = s.DictField()
    created_at = s.DateTimeField()
    read_at = s.DateTimeField(allow_null=True)


class MarkedRead(ResponseShape):
    """How many notifications were new."""

    marked = s.IntegerField()


class AuditAnswer(ResponseShape):
    """Who did what to which object."""

    id = s.IntegerField()
    actor = s.CharField(allow_null=True)
    action = s.CharField()
    target = s.CharField()
    detail = s.DictField()
    at = s.DateTimeField()


class AccountingAnswer(ResponseShape):
    """An ended lease by two clocks: the agent's own and the bill's."""

    lease = s.CharField()
    request = s.CharField()
    team = s.SlugField()
    activated_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True)
    clean_at = s.DateTimeField(allow_null=True)
    end_reason = s.CharField()
    agent_active_ms = s.IntegerField(allow_null=True)
    billed_s = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    is_metered = s.BooleanField()


class OverlapsAnswer(ResponseShape):
    """Overlapping placements found by a query over the rows: both figures must be 0."""

    live = s.IntegerField()
    ever = s.IntegerField()
    placements = s.IntegerField()
    checked_at = s.DateTimeField()
