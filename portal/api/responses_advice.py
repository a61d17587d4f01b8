"""The shapes of answers about the size of leases."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.advice.sizing import SizeVerdict
from portal.api.responses import Money, ResponseShape


class SizeAdviceAnswer(ResponseShape):
    """What is said about the size of leases, with its evidence. Null is unknown, never zero."""

    verdict = s.ChoiceField(SizeVerdict.choices)
    sentence = s.CharField(help_text="The same in words, with figures.")
    flavor = s.SlugField(help_text="The flavor that it is about.")
    count = s.IntegerField()
    leases = s.IntegerField(help_text="On how many leases it rests, without those that were too short.")
    due_min = s.IntegerField(help_text="Their full minutes.")
    known_min = s.IntegerField(help_text="So many of them were measured.")
    peak_memory_mib = s.IntegerField(
        allow_null=True, help_text="The most device memory of all units together."
    )
    needed_memory_mib = s.IntegerField(
        allow_null=True, help_text="What each unit must have: the peak and a margin."
    )
    activity_percent = s.FloatField(allow_null=True, help_text="The mean part at work.")
    activity_signal = s.CharField(
        allow_blank=True,
        help_text="`sm`: by activity inside the device; `util`: by utilisation; empty: unknown.",
    )
    suggested = s.SlugField(allow_null=True, help_text="The flavor that would do for less; null: none.")
    seconds = s.IntegerField(help_text="The time that both prices are for.")
    price = Money(allow_null=True, help_text="Of the flavor, at the prices in force now.")
    suggested_price = Money(allow_null=True)
    saved = Money(allow_null=True)
    saved_percent = s.IntegerField(allow_null=True)
    speed_percent = s.IntegerField(allow_null=True, help_text="Of the suggested one, against the flavor.")
    stretch = s.FloatField(
        allow_null=True, help_text="How many times as long the same work takes at most there."
    )


class LeaseAdviceAnswer(SizeAdviceAnswer):
    """The same of one lease."""

    lease = s.CharField()
    is_dismissed = s.BooleanField(help_text="You want no advice about this flavor.")


class DismissedAdviceAnswer(ResponseShape):
    """Whether you want no advice about a flavor."""

    flavor = s.SlugField()
    is_dismissed = s.BooleanField()
