"""The shapes of answers, for the schema; the values are shaped by plain functions beside the views.

A test checks every answer of the API against these.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from portal.accounts.models import Scope
from portal.notifications.models import AnnouncementLevel
from portal.teams.models import Role, TimeOutRule


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
    time_zone = s.CharField(
        allow_blank=True, help_text="Of pages and of sentences here; empty: the portal's."
    )
    language = s.CharField(allow_blank=True, help_text="Empty: what the browser asks for.")
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
    second_approval_above_gpu_seconds = s.IntegerField(
        allow_null=True, help_text="A larger one needs those of two people; null: one is enough."
    )
    approval_time_out_s = s.IntegerField(
        allow_null=True, help_text="How long it waits for a decision; null: for ever."
    )
    approval_time_out_then = s.ChoiceField(TimeOutRule.choices, help_text="What becomes of it then.")


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
    spend = Money(help_text="This month so far, running leases included, as on the team's own invoice.")
    spend_with_below = Money(help_text="The same with the teams below, which have invoices of their own.")
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
    ends_at = s.DateTimeField(allow_null=True, help_text="From then on it gives no right; null: no end.")


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
    most_duration_s = s.IntegerField(
        allow_null=True, help_text="How long one lease may run, extensions counted in; null: no limit."
    )
    gpu_seconds_a_month = s.IntegerField(
        allow_null=True, help_text="Device seconds by share in a month; null: no limit."
    )
    used_gpu_seconds = s.IntegerField(
        allow_null=True, help_text="Used and held of this month's; null: no limit."
    )
    most_memory_mib = s.IntegerField(allow_null=True, help_text="Device memory held at once; null: no limit.")
    held_memory_mib = s.IntegerField(allow_null=True, help_text="Device memory held now; null: no limit.")
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
    share_milli = s.IntegerField(help_text="Of the device.")
    quota_milli = s.IntegerField(help_text="What one takes of a quota, in thousandths of a reference GPU.")
    speed_milli = s.IntegerField(
        allow_null=True,
        help_text="Of a reference GPU; the most one gets where compute is shared. Null is unknown.",
    )
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


class SshKeyAnswer(ResponseShape):
    """A public key of one's own."""

    id = s.IntegerField()
    name = s.CharField()
    fingerprint = s.CharField(help_text="SHA-256, as ssh-keygen -l shows it.")
    key = s.CharField()
    created_at = s.DateTimeField()


class ContactPointAnswer(ResponseShape):
    """Where one is told beside the pages."""

    id = s.IntegerField()
    kind = s.CharField(help_text="email, webhook, slack, feishu, dingtalk or wecom.")
    name = s.CharField()
    address = s.CharField(help_text="A mailbox whole; of a web address its host and its end.")
    muted = s.ListField(child=s.CharField(), help_text="Topics that are not told there.")
    digest_at = s.CharField(allow_null=True, help_text="HH:MM in one's time zone.")
    quiet_from = s.CharField(allow_null=True)
    quiet_until = s.CharField(allow_null=True)
    is_on = s.BooleanField()
    confirmed_at = s.DateTimeField(allow_null=True, help_text="null: a mailbox that nobody confirmed yet.")
    created_at = s.DateTimeField()


class NewContactPointAnswer(ContactPointAnswer):
    """A contact point just made."""

    secret = s.CharField(allow_null=True, help_text="Of a webhook, shown once; keep it now.")


class DeliveryAnswer(ResponseShape):
    """A message to a contact point."""

    id = s.IntegerField()
    purpose = s.CharField(help_text="news, test or confirmation.")
    kind = s.CharField(allow_null=True, help_text="Of the notification.")
    state = s.CharField(help_text="waiting, sent or failed.")
    attempts = s.IntegerField(help_text="Tries that went wrong.")
    told_at = s.DateTimeField()
    due_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    error = s.CharField(allow_blank=True)


class MatchAnswer(ResponseShape):
    """An object that fits what was searched for."""

    kind = s.CharField(help_text="lease, request, job, team or node.")
    id = s.CharField()
    name = s.CharField(allow_blank=True)
    state = s.CharField(allow_blank=True)
    path = s.CharField(help_text="Of its page.")


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


class AnnouncementAnswer(ResponseShape):
    """What operators say on every page."""

    id = s.CharField()
    level = s.ChoiceField(AnnouncementLevel.choices)
    text_en = s.CharField()
    text_zh = s.CharField(allow_blank=True, help_text="Empty: Chinese pages show `text_en`.")
    team = s.SlugField(allow_null=True, help_text="Null: for everybody, on the sign-in page too.")
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField(allow_null=True, help_text="Null: until it is withdrawn.")


class AuditAnswer(ResponseShape):
    """Who did what to which object."""

    id = s.IntegerField()
    actor = s.CharField(allow_null=True)
    action = s.CharField()
    target = s.CharField()
    detail = s.DictField()
    at = s.DateTimeField()


class OverlapsAnswer(ResponseShape):
    """Overlapping placements found by a query over the rows: both figures must be 0."""

    live = s.IntegerField()
    ever = s.IntegerField()
    placements = s.IntegerField()
    checked_at = s.DateTimeField()
