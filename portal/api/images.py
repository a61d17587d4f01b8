"""The images that a team's jobs may run in."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from nodeagent.protocol.images import MOST_REFERENCE
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.representations import Row
from portal.api.responses_jobs import ImagesAnswer, ImagesHereAnswer
from portal.common.clock import db_now
from portal.fleet.images import images_here
from portal.jobs.images import MOST_NAMES, allowed_images, may_edit_images, store_allowed_images
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team

TAG = "teams"


class ImagesBody(Body):
    """The whole list of a team; it replaces the one that is there."""

    images = serializers.ListField(child=Text(most=MOST_REFERENCE), max_length=MOST_NAMES)


class ImagesHere(Endpoint):
    """The images that one's own jobs find on nodes."""

    @call("List images on nodes", answer=ImagesHereAnswer, tag="jobs")
    def get(self, request: Request) -> Response:
        """List the images that your jobs find on nodes, which so need not be fetched, as the agents said last.

        Holders keep their images apart: those of others are not among them.
        """
        rows = [
            {
                "image": one.name,
                "digest": one.digest or None,
                "size_mib": one.size_mib,
                "nodes": list(one.nodes),
            }
            for one in images_here(self.rights.user)
        ]
        return Response({"images": rows})


class TeamImages(Endpoint):
    """The images that jobs of a team may run in."""

    @call("List the images of a team", answer=ImagesAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """List the images that jobs of a team may run in, those of the teams above with it.

        Images in the site's own folder (`oci:…`) need no line.
        """
        return Response(images_row(self.rights, visible_team(self.rights, slug)))

    @call("Set the images of a team", body=ImagesBody, answer=ImagesAnswer, refusals=(404, 422), tag=TAG)
    def put(self, request: Request, slug: str) -> Response:
        """Replace a team's own list: an admin of it, or an operator. Jobs that run go on."""
        team = visible_team(self.rights, slug)
        names = self.take(ImagesBody)["images"]
        store_allowed_images(team=team, rights=self.rights, names=names, now=db_now())
        return Response(images_row(self.rights, team))


def images_row(rights: Rights, team: Team) -> Row:
    """Return a team's own list, and what those above add."""
    found = allowed_images(team)
    return {
        "team": team.slug,
        "images": [one.name for one in found if one.team.pk == team.pk],
        "from_above": [{"team": one.team.slug, "image": one.name} for one in found if one.team.pk != team.pk],
        "can_change": may_edit_images(rights, team),
    }
