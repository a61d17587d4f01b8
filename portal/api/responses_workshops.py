"""The shapes of what is said about workshops (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import Money, ResponseShape
from portal.leases.seats import AHEAD, BACK, CAME, NO_SLICE, OPEN
from portal.leases.states import Approval


class SeatAnswer(ResponseShape):
    """The seat of one person: `open` can be started now, `returned` was not used in time."""

    person = s.CharField()
    state = s.ChoiceField((AHEAD, OPEN, CAME, BACK, NO_SLICE))
    request = s.CharField(allow_null=True, help_text="What keeps the slice; null: nothing was asked for yet.")
    lease = s.CharField(allow_null=True)
    came_at = s.DateTimeField(allow_null=True)
    returned_at = s.DateTimeField(allow_null=True)


class WorkshopAnswer(ResponseShape):
    """Slices for a list of people at one time."""

    id = s.CharField()
    name = s.CharField()
    team = s.SlugField()
    organiser = s.CharField()
    flavor = s.SlugField()
    starts_at = s.DateTimeField()
    duration_s = s.IntegerField()
    returns_at = s.DateTimeField(help_text="What nobody has started by then is given back, unbilled.")
    purpose = s.CharField(allow_blank=True)
    approval = s.ChoiceField(Approval.choices, help_text="Nothing is asked for while it awaits approval.")
    decision_note = s.CharField(allow_blank=True)
    cancelled_at = s.DateTimeField(allow_null=True)
    settled_at = s.DateTimeField(allow_null=True, help_text="When unused slices were given back.")
    created_at = s.DateTimeField()


class WorkshopDetail(WorkshopAnswer):
    """A workshop with its seats; `seats` are null for those who neither run nor approve it."""

    can_manage = s.BooleanField()
    own = SeatAnswer(allow_null=True)
    seats = SeatAnswer(many=True, allow_null=True)


class WorkshopPreviewAnswer(ResponseShape):
    """What a workshop would be: who was found, the price at most, and the room at that time."""

    ready = s.ListField(child=s.CharField(), help_text="In the team until it ends.")
    outside = s.ListField(
        child=s.CharField(), help_text="Not in the team; named only to those who can let them in."
    )
    unknown = s.ListField(child=s.CharField(), help_text="Lines that nobody goes by.")
    repeated = s.ListField(child=s.CharField(), help_text="Lines that name somebody again.")
    seats = s.IntegerField()
    price = Money(allow_null=True, help_text="Null: no price is in force.")
    needs_approval = s.BooleanField()
    free = s.IntegerField(allow_null=True, help_text="How many could be booked then; null: not known.")
    others = s.ListField(child=s.DateTimeField(), help_text="Later starts with room for everybody.")
