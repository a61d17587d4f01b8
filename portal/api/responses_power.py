"""The shapes of what is said about power (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape


class EnergyAnswer(ResponseShape):
    """What sleeping saved since an instant, by the devices' energy counters; host and cooling are not in it."""

    since = s.DateTimeField()
    sleeps = s.IntegerField(help_text="How often nodes slept.")
    asleep_s = s.IntegerField()
    saved_wh = s.FloatField(allow_null=True, help_text="Watt-hours; null is unknown: not measured.")


class PowerAnswer(EnergyAnswer):
    """A node's power. `turning` is told otherwise than it is and not there yet; null is unknown."""

    node = s.CharField()
    power = s.ChoiceField(("awake", "asleep", "turning", "unsupported"), allow_null=True)
    desired = s.ChoiceField(("awake", "asleep"))
    note = s.CharField(allow_blank=True, help_text="Why it did not do as it was told.")
    may_sleep_any_time = s.BooleanField(help_text="An operator let it sleep until it is needed.")
    kept_awake_until = s.DateTimeField(allow_null=True)
    idle_since = s.DateTimeField(allow_null=True, help_text="Null while it holds something, or unknown.")
    wake_s = s.IntegerField(allow_null=True, help_text="How long waking took last; null is unknown.")
