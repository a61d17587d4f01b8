"""Shapes of answers about reports that are sent by themselves."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape
from portal.notifications.models import DeliveryState


class MailingAnswer(ResponseShape):
    """What is sent to whom, when."""

    id = s.IntegerField()
    team = s.CharField()
    day = s.IntegerField(allow_null=True, help_text="null: after each close.")
    formats = s.ListField(child=s.CharField())
    language = s.CharField()
    recipients = s.ListField(child=s.CharField())
    is_on = s.BooleanField()


class MailingDelivery(ResponseShape):
    """What went to one contact point."""

    month = s.CharField()
    recipient = s.CharField()
    by = s.CharField(help_text="Kind of contact point, such as email.")
    state = s.ChoiceField(DeliveryState.choices)
    told_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)
    attempts = s.IntegerField(help_text="Tries that failed.")
    error = s.CharField(allow_blank=True)
