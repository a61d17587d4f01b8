"""A team's standing by fair share over HTTP."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.quotas.fair_share import standing_of
from portal.teams.selectors import visible_team
from scheduler.engine.order.fair_share import FairShare


class PlaceAnswer(ResponseShape):
    """Among its siblings: what one is entitled to and has used, in thousandths, and who would go first."""

    share_milli = s.IntegerField(help_text="Thousandths of what all siblings are entitled to together.")
    used_milli_s = s.IntegerField(help_text="Decayed usage, thousandths of a reference GPU times seconds.")
    part_milli = s.IntegerField(
        allow_null=True, help_text="Thousandths of what all siblings have used; null when nothing was."
    )
    ratio_milli = s.IntegerField(
        allow_null=True, help_text="Part over share in thousandths: below 1000 is less than its share."
    )
    rank = s.IntegerField(help_text="1 goes first by fair share; equals have the same rank.")
    siblings = s.IntegerField(help_text="How many stand beside each other, this one included.")


class PersonPlace(PlaceAnswer):
    """A person among the people of the team."""

    username = s.CharField()
    display_name = s.CharField()


class StandingAnswer(PlaceAnswer):
    """A team's standing and that of its people, as far as the caller may see them."""

    team = s.SlugField()
    order = s.CharField(help_text="The active order policy.")
    counts = s.BooleanField(help_text="Whether that order weighs what was used.")
    half_life_s = s.IntegerField(help_text="Half of a use is forgotten in this time.")
    as_of = s.DateTimeField(allow_null=True, help_text="When usage was last settled; null before the first.")
    people = PersonPlace(many=True)


class TeamFairShareEndpoint(Endpoint):
    """Where a team stands."""

    @call("Read a team's standing", answer=StandingAnswer, refusals=(404,), tag="teams")
    def get(self, request: Request, slug: str) -> Response:
        """Read a team's share, decayed usage and rank among its siblings, and its people's.

        Admins and operators see all people, everybody else themselves.
        """
        team = visible_team(self.rights, slug)
        found = standing_of(team, self.rights, now=timezone.now())
        people = [
            {"username": user.username, "display_name": user.display_name, **place(at)}
            for user, at in found.people
        ]
        return Response(
            {
                "team": team.slug,
                "order": found.order,
                "counts": found.counts,
                "half_life_s": found.half_life_s,
                "as_of": instant(found.as_of),
                **place(found.team),
                "people": people,
            }
        )


def place(at: FairShare) -> Row:
    """Return a standing in thousandths."""
    return {
        "share_milli": round(at.share * 1000),
        "used_milli_s": at.used_milli_s,
        "part_milli": None if at.part is None else round(at.part * 1000),
        "ratio_milli": None if at.ratio is None else round(at.ratio * 1000),
        "rank": at.rank,
        "siblings": at.siblings,
    }
