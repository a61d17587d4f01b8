"""The shapes of answers about policies, cohorts and priority, for the schema."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape


class PolicyRow(ResponseShape):
    """A version of the rules."""

    version = s.IntegerField()
    name = s.CharField()
    is_active = s.BooleanField()
    note = s.CharField(allow_blank=True)
    made_by = s.CharField(allow_null=True, help_text="Sign-in name; null is Berth itself.")
    based_on = s.IntegerField(allow_null=True)
    created_at = s.DateTimeField()
    activated_at = s.DateTimeField(allow_null=True, help_text="When it was last activated.")


class PolicyFault(ResponseShape):
    """Why a stored version cannot decide a cycle."""

    field = s.CharField(allow_blank=True)
    code = s.CharField()
    detail = s.CharField()


class PolicyAnswer(PolicyRow):
    """A version with its rules; where `faults` is not empty, an earlier version decides instead."""

    body = s.JSONField(help_text="Every rule, see docs/policies.md.")
    faults = PolicyFault(many=True)


class PolicyChange(ResponseShape):
    """A rule in which two policies differ, in words."""

    rule = s.CharField(help_text="Dotted key in the body.")
    name = s.CharField(help_text="The rule as people read it.")
    was = s.ListField(child=s.CharField())
    now = s.ListField(child=s.CharField())


class PolicyMoved(ResponseShape):
    """A waiting request whose lot would change; position 0 is a start now."""

    request = s.CharField()
    name = s.CharField(allow_blank=True)
    team = s.CharField()
    position_was = s.IntegerField()
    position_now = s.IntegerField()


class PolicyTeamEffect(ResponseShape):
    """How many waiting requests of a team would fare otherwise."""

    team = s.CharField()
    would_start = s.IntegerField()
    would_not_start = s.IntegerField()
    sooner = s.IntegerField()
    later = s.IntegerField()
    blocked = s.IntegerField(help_text="Would wait for quota or could never start, and now do not.")


class PolicyPreempted(ResponseShape):
    """A live lease that would be told to go, and is not with the active policy."""

    lease = s.CharField()
    name = s.CharField(allow_blank=True)
    team = s.CharField()


class PolicyTried(ResponseShape):
    """One cycle on the last published snapshot, played with the active policy and with the other one."""

    taken_at = s.DateTimeField()
    waiting = s.IntegerField()
    looked_at = s.IntegerField(help_text="So many from the head of the queue were looked at.")
    would_start = PolicyMoved(many=True)
    would_not_start = PolicyMoved(many=True)
    sooner = PolicyMoved(many=True)
    later = PolicyMoved(many=True)
    blocked = PolicyMoved(many=True, help_text="Would wait for quota or could never start, and now do not.")
    counts = s.DictField(child=s.IntegerField())
    teams = PolicyTeamEffect(many=True)
    would_preempt = PolicyPreempted(many=True, help_text="The first of them.")
    preemptions_was = s.IntegerField()
    preemptions_now = s.IntegerField()


class QuotaTried(ResponseShape):
    """What another quota would change for those who wait, as far as the caller sees their teams."""

    preview = PolicyTried(allow_null=True, help_text="Null: no snapshot to try it on.")


class PolicyChecked(ResponseShape):
    """A body that can decide a cycle, with every rule named, and what it would change."""

    body = s.JSONField()
    changes = PolicyChange(many=True)
    preview = PolicyTried(allow_null=True, help_text="Null: not asked for, or no snapshot to try it on.")


class CohortMember(ResponseShape):
    """A team of a cohort, in weighted thousandths of a reference GPU."""

    team = s.SlugField()
    name = s.CharField()
    guaranteed_milli = s.IntegerField()
    used_milli = s.IntegerField()
    borrowed_milli = s.IntegerField()
    lending_milli = s.IntegerField(allow_null=True, help_text="The most it lends; null: all it does not use.")
    lendable_milli = s.IntegerField(help_text="What it could lend now.")


class CohortAnswer(ResponseShape):
    """Teams that lend each other what they do not use of their guarantees."""

    id = s.IntegerField()
    name = s.CharField()
    borrowed_milli = s.IntegerField()
    lendable_milli = s.IntegerField()
    members = CohortMember(many=True)


class PriorityGrantAnswer(ResponseShape):
    """A team's requests go before others by so many steps, for a time."""

    id = s.IntegerField()
    team = s.SlugField()
    steps = s.IntegerField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    reason = s.CharField()
    state = s.ChoiceField(["to_come", "in_force", "over", "revoked"])
    made_by = s.CharField(allow_null=True)
    created_at = s.DateTimeField()
    revoked_at = s.DateTimeField(allow_null=True)
