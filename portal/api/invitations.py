"""Invitations into a team over HTTP: make, list, revoke, accept."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_setup import NewTeamInvitationAnswer, TeamInvitationAnswer, TeamJoinedAnswer
from portal.api.wire import instant
from portal.audit.invitations import (
    MOST_DAYS,
    accept_team_invitation,
    invite,
    open_invitations,
    revoke_invitation,
)
from portal.notifications.invitations import check_mailbox, mail_invitation
from portal.teams.models import Role, TeamInvitation
from portal.teams.selectors import visible_team
from portal.teams.services import GIVES

TAG = "teams"


class TeamInvitationBody(Body):
    """Which role somebody is invited to, for how long, and where the link goes."""

    role = serializers.ChoiceField(Role.choices, default=Role.RESEARCHER.value)
    days = Whole(least=1, most=MOST_DAYS, default=7, help_text="For how long the link works.")
    role_ends_at = Instant(
        required=False, allow_null=True, default=None, help_text="From then on the role gives no right."
    )
    email = Text(most=254, allow_blank=True, default="", help_text="Where the link is sent; empty: nowhere.")


class InvitationSecret(Body):
    """What stands behind `/invitations/` in the link."""

    secret = Text(most=100)


class TeamInvitations(Endpoint):
    """The open invitations of a team."""

    shown_once = ("link",)

    @call("List invitations", answer=TeamInvitationAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """List the invitations that can still be used. Admins and operators."""
        team = visible_team(self.rights, slug)
        self.rights.require(team, *GIVES)
        rows = open_invitations(team, now=timezone.now())
        return Response({"next": None, "results": [invitation_row(row) for row in rows]})

    @call(
        "Invite somebody", body=TeamInvitationBody, answer=NewTeamInvitationAnswer, status=201,
        refusals=(404, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Make a link with which one person joins. The answer has it, once. Admins and operators."""
        team, values = visible_team(self.rights, slug), self.take(TeamInvitationBody)
        self.rights.require(team, *GIVES)
        check_mailbox(values["email"])
        made = invite(team=team, rights=self.rights, now=timezone.now(), **values)
        link = request.build_absolute_uri(made.path)
        fault = mail_invitation(made.row, link) if made.row.email else ""
        return Response(
            {**invitation_row(made.row), "link": link, "mail_fault": fault},
            status=201,
            headers={"Location": f"/api/v1/teams/{team.slug}/invitations/"},
        )


class OneTeamInvitation(Endpoint):
    """One invitation."""

    @call("Revoke an invitation", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, slug: str, key: int) -> Response:
        """Close an invitation that nobody has used. Admins and operators."""
        team = visible_team(self.rights, slug)
        revoke_invitation(team=team, key=key, rights=self.rights, now=timezone.now())
        return Response(status=204)


class AcceptInvitation(Endpoint):
    """Join a team by a link."""

    @call(
        "Accept an invitation",
        body=InvitationSecret,
        answer=TeamJoinedAnswer,
        refusals=(404, 409, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request) -> Response:
        """Take the role that a link gives; the link is used up by that."""
        secret = self.take(InvitationSecret)["secret"]
        row = accept_team_invitation(secret, user=self.person, now=timezone.now())
        return Response({"team": row.team.slug, "role": row.role, "role_ends_at": instant(row.role_ends_at)})


def invitation_row(row: TeamInvitation) -> Row:
    """Return an invitation without its link; who made it must be at hand."""
    return {
        "id": row.pk,
        "role": row.role,
        "role_ends_at": instant(row.role_ends_at),
        "email": row.email,
        "invited_by": row.invited_by.username,
        "created_at": instant(row.created_at),
        "expires_at": instant(row.expires_at),
    }
