"""Shapes of answers about projects, cost centres and tags."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import ResponseShape


class ProjectAnswer(ResponseShape):
    """What money is spent for, across people."""

    code = s.CharField()
    name = s.CharField()
    team = s.CharField()
    cost_centre = s.CharField(allow_blank=True, help_text="Empty: the team's.")
    tags = s.DictField(child=s.CharField())
    is_ended = s.BooleanField()


class TeamLabelsAnswer(ResponseShape):
    """Cost centre and tags of a team."""

    team = s.CharField()
    cost_centre = s.CharField(allow_blank=True)
    tags = s.DictField(child=s.CharField())


class FiledUnder(ResponseShape):
    """What usage is filed under, with what project and team add."""

    project = s.CharField(allow_blank=True)
    cost_centre = s.CharField(allow_blank=True)
    tags = s.DictField(child=s.CharField())


class RequestLabelsAnswer(ResponseShape):
    """What a request is filed under: its own, and what comes of it with those of project and team."""

    request = s.CharField()
    project = s.CharField(allow_blank=True)
    cost_centre = s.CharField(allow_blank=True)
    tags = s.DictField(child=s.CharField())
    filed_under = FiledUnder()
