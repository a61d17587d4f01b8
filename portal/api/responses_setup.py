"""Answers about setting up an installation: its first start, new teams and people, currency."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape
from portal.teams.models import Role


class SetUpAnswer(ResponseShape):
    """Who signs in now, and the slug of the organisation."""

    username = s.CharField()
    team = s.SlugField()


class StepsAnswer(ResponseShape):
    """How far an installation has come; ready is when somebody can ask for GPU time."""

    has_organisation = s.BooleanField()
    has_teams = s.BooleanField()
    has_people = s.BooleanField()
    has_threshold = s.BooleanField()
    has_nodes = s.BooleanField()
    has_flavors = s.BooleanField()
    has_prices = s.BooleanField()
    is_ready = s.BooleanField()


class InvitationAnswer(ResponseShape):
    """Somebody who can choose a password with the link, once."""

    username = s.CharField()
    link = s.CharField(allow_null=True, help_text="Shown in the first answer only.")
    expires_at = s.DateTimeField()


class TeamInvitationAnswer(ResponseShape):
    """An invitation into a team that can still be used."""

    id = s.IntegerField()
    role = s.ChoiceField(Role.choices)
    role_ends_at = s.DateTimeField(allow_null=True)
    email = s.CharField(allow_blank=True, help_text="Where it was sent; empty: nowhere.")
    invited_by = s.CharField()
    created_at = s.DateTimeField()
    expires_at = s.DateTimeField()


class NewTeamInvitationAnswer(TeamInvitationAnswer):
    """A new invitation with its link."""

    link = s.CharField(allow_null=True, help_text="Shown in the first answer only.")
    mail_fault = s.CharField(allow_blank=True, help_text="Why the mail was not sent; empty: it was, or none.")


class TeamJoinedAnswer(ResponseShape):
    """The role that an invitation gave."""

    team = s.SlugField()
    role = s.ChoiceField(Role.choices)
    role_ends_at = s.DateTimeField(allow_null=True)


class DelegationAnswer(ResponseShape):
    """Who decides on requests in whose place, from when until when."""

    id = s.IntegerField()
    delegator = s.CharField()
    deputy = s.CharField()
    reason = s.CharField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True, help_text="When one of both ended it before its time.")
    ended_by = s.CharField(allow_null=True)


class CurrencyAnswer(ResponseShape):
    """The currency of all prices."""

    currency = s.CharField()
    is_fixed = s.BooleanField(help_text="A price is set, so it cannot change any more.")


class NamesAnswer(ResponseShape):
    """What was made, by slug."""

    made = s.ListField(child=s.SlugField())
