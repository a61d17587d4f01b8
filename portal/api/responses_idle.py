"""The shapes of answers about leases that idle, and the rules for them."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape
from portal.idle.models import IdleAction, IdleState


class IdleRuleAnswer(ResponseShape):
    """What happens to leases that idle."""

    id = s.IntegerField()
    team = s.SlugField(allow_null=True, help_text="With those below it; null: every team.")
    flavor = s.SlugField(allow_null=True, help_text="Null: every flavor.")
    after_min = s.IntegerField()
    then = s.ChoiceField(IdleAction.choices)
    grace_min = s.IntegerField()
    snoozes = s.IntegerField()
    snooze_min = s.IntegerField()


class IdleAnswer(ResponseShape):
    """What a running lease was last judged to do, by what, and what comes of it; null is unknown."""

    lease = s.CharField()
    team = s.SlugField()
    user = s.CharField()
    state = s.ChoiceField(IdleState.choices)
    why = s.CharField(
        help_text="works, attended, nothing, dummy_loop, keep_alive, too_few, stuck; unjudged before the first look."
    )
    evidence = s.CharField(allow_blank=True, help_text="The same as a sentence, with figures.")
    since = s.DateTimeField(allow_null=True)
    judged_at = s.DateTimeField(allow_null=True)
    window_min = s.IntegerField(allow_null=True)
    known_min = s.IntegerField(allow_null=True)
    worked_min = s.IntegerField(allow_null=True)
    util_percent = s.FloatField(allow_null=True)
    sm_percent = s.FloatField(allow_null=True)
    power_w = s.FloatField(allow_null=True)
    memory_mib = s.IntegerField(allow_null=True)
    processes = s.IntegerField(allow_null=True)
    then = s.CharField(
        allow_blank=True, help_text="What its rule says: nothing, warn or reclaim; empty: no rule."
    )
    reclaim_at = s.DateTimeField(
        allow_null=True, help_text="When it is taken back as things stand; null: not."
    )
    snoozed_until = s.DateTimeField(allow_null=True)


class LeaseIdleAnswer(IdleAnswer):
    """The same of one lease, with how often it may still be put off."""

    snoozes_left = s.IntegerField()
    snooze_min = s.IntegerField()
