"""The shapes of what is said about time to come (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape
from portal.leases.states import Approval, Repeat, RequestState


class EntryAnswer(ResponseShape):
    """Something that is held or planned. What a stranger holds has no names (`is_known` false)."""

    kind = s.ChoiceField(("lease", "booking", "promise", "maintenance"))
    node = s.CharField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    device = s.CharField(allow_blank=True, help_text="Empty: the whole node.")
    device_index = s.IntegerField(allow_null=True)
    start = s.IntegerField(help_text="First memory slice of the device.")
    size = s.IntegerField(help_text="Memory slices; 0 for a share.")
    share_milli = s.IntegerField()
    mode = s.CharField(allow_blank=True)
    state = s.CharField(allow_blank=True)
    is_known = s.BooleanField()
    is_own = s.BooleanField()
    lease = s.CharField(allow_blank=True)
    request = s.CharField(allow_blank=True)
    name = s.CharField(allow_blank=True)
    team = s.CharField(allow_blank=True, help_text="Slug of the team.")
    team_name = s.CharField(allow_blank=True, help_text="The team as people call it.")
    holder = s.CharField(allow_blank=True)
    flavor = s.CharField(allow_blank=True)
    window = s.CharField(allow_blank=True)
    note = s.CharField(allow_blank=True, help_text="Why there is maintenance.")


class TimeAnswer(ResponseShape):
    """One time of a reservation and what became of it; `leases` are empty until it is booked."""

    request = s.CharField()
    starts_at = s.DateTimeField()
    state = s.ChoiceField(RequestState.choices)
    leases = s.ListField(child=s.CharField())


class ReservationAnswer(ResponseShape):
    """Bookings that come again."""

    id = s.CharField()
    team = s.SlugField()
    author = s.CharField()
    flavor = s.SlugField()
    count = s.IntegerField()
    duration_s = s.IntegerField()
    name = s.CharField(allow_blank=True)
    purpose = s.CharField(allow_blank=True)
    starts_at = s.DateTimeField(help_text="The first time.")
    repeat = s.ChoiceField(Repeat.choices)
    until = s.DateTimeField(allow_null=True)
    zone = s.CharField(help_text="The time zone in which the hour stays the same.")
    made_until = s.DateTimeField(allow_null=True, help_text="Its times were asked for up to here.")
    approval = s.ChoiceField(Approval.choices, help_text="Nothing is asked for while it awaits approval.")
    decision_note = s.CharField(allow_blank=True)
    cancelled_at = s.DateTimeField(allow_null=True)
    created_at = s.DateTimeField()


class ReservationDetail(ReservationAnswer):
    """Bookings that come again, with their times from now on."""

    can_manage = s.BooleanField()
    times = TimeAnswer(many=True)


class WindowAnswer(ResponseShape):
    """A time in which nodes are not available."""

    id = s.CharField()
    nodes = s.ListField(child=s.CharField())
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    reason = s.CharField()
    made_by = s.CharField(allow_null=True)
    created_at = s.DateTimeField()
    cancelled_at = s.DateTimeField(allow_null=True)


class AffectedAnswer(ResponseShape):
    """A lease or booking that maintenance reaches, and the seconds that it loses."""

    lease = s.CharField()
    request = s.CharField()
    team = s.SlugField()
    user = s.CharField()
    node = s.CharField()
    flavor = s.SlugField()
    state = s.CharField()
    is_booking = s.BooleanField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    loses_s = s.IntegerField()
