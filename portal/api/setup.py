"""The first start over HTTP: the organisation and its first administrator, then what is left to do."""

from __future__ import annotations

from dataclasses import asdict

from django.utils.translation import gettext as _
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.responses_setup import SetUpAnswer, StepsAnswer
from portal.catalog.first_start import progress
from portal.common.clock import db_now
from portal.common.errors import Forbidden
from portal.policies.first_policy import set_up_with_policy
from portal.web.setup import runs_organisation

TAG = "setup"


class SetUpBody(Body):
    """The setup code, the organisation, its currency and its first administrator."""

    code = Text(most=40)
    organisation = Text(most=80)
    currency = Text(most=3, default="EUR")
    username = Text(most=150)
    display_name = Text(most=100, allow_blank=True, default="")
    password = Text(most=500, trim_whitespace=False)


class SetUp(Endpoint):
    """The first call to an empty installation, before anybody can sign in."""

    authentication_classes = ()
    permission_classes = (AllowAny,)  # type: ignore[assignment]

    @call(
        "Set up an empty installation",
        body=SetUpBody,
        answer=SetUpAnswer,
        status=201,
        refusals=(409, 422),
        tag=TAG,
    )
    def put(self, request: Request) -> Response:
        """Make the organisation and its first administrator. Needs the setup code instead of a token; works once."""
        user = set_up_with_policy(now=db_now(), **self.take(SetUpBody))
        team = user.memberships.select_related("team").order_by("pk")[0].team
        return Response({"username": user.username, "team": team.slug}, status=201)


class Steps(Endpoint):
    """What an installation has of what it needs."""

    @call("Read what is left to set up", answer=StepsAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Say how far the installation has come; for those who run the organisation."""
        if not runs_organisation(self.rights):
            raise Forbidden(_("Only those who run the organisation set it up."))
        found = progress()
        return Response({**asdict(found), "is_ready": found.is_ready})
