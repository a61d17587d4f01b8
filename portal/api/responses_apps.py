"""The shapes of answers about apps in leases (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape


class LeaseAppAnswer(ResponseShape):
    """An app that this installation knows."""

    name = s.CharField()
    title = s.CharField()
    needs = s.ListField(
        child=s.CharField(), help_text="The programs that it needs where its holder's shell finds them."
    )


class AppsAnswer(ResponseShape):
    """What opens in a lease."""

    apps = LeaseAppAnswer(many=True)
    refusal = s.CharField(
        help_text='Why nothing opens in this lease now, "" where it does.', allow_blank=True
    )


class AppAddressAnswer(ResponseShape):
    """The way into an app."""

    address = s.CharField(help_text="To open in a browser, once; null in a repeated answer.", allow_null=True)
    good_for_s = s.IntegerField()
