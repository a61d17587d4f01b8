"""Projects, and what teams and requests are filed under, over HTTP."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, TagsField, Text
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_labels import ProjectAnswer, RequestLabelsAnswer, TeamLabelsAnswer
from portal.billing.labels import (
    add_project,
    change_project,
    label_request,
    label_team,
    request_labels,
    visible_project,
    visible_projects,
)
from portal.leases.labels import requests_labels
from portal.leases.models import LeaseRequest
from portal.leases.selectors import visible_request
from portal.teams.models import Project, Team
from portal.teams.selectors import visible_team

TAG = "money"


class NewProjectBody(Body):
    """A project to be; its code never changes."""

    code = Text(most=40)
    name = Text(most=80)
    team = Text(most=50)
    cost_centre = Text(most=40, allow_blank=True, default="", help_text="Empty: the team's.")
    tags = TagsField(default=dict)


class ProjectBody(Body):
    """What may change of a project; what is left out stays as it is."""

    name = Text(most=80, required=False)
    cost_centre = Text(most=40, allow_blank=True, required=False)
    tags = TagsField(required=False)
    is_ended = Flag(required=False, help_text="New requests cannot name it.")


class TeamLabelsBody(Body):
    """Cost centre and tags of a team; what is left out stays as it is."""

    cost_centre = Text(most=40, allow_blank=True, required=False)
    tags = TagsField(required=False)


class RequestLabelsBody(Body):
    """What a request is filed under; what is left out stays as it is."""

    project = Text(most=40, allow_blank=True, required=False, help_text="Its code; empty: none.")
    cost_centre = Text(
        most=40,
        allow_blank=True,
        required=False,
        help_text="For admins and finance. Empty: the project's or team's.",
    )
    tags = TagsField(required=False)


class Projects(Endpoint):
    """Projects."""

    @call("List projects", answer=ProjectAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the projects of one's teams and of those above and below them."""
        return Response(
            {"next": None, "results": [project_row(one) for one in visible_projects(self.rights)]}
        )

    @call(
        "Add a project",
        body=NewProjectBody,
        answer=ProjectAnswer,
        status=201,
        refusals=(404, 409, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request) -> Response:
        """Make a project that requests of a team and of those below it can name. Admins and finance of the team."""
        values = self.take(NewProjectBody)
        values["team"] = visible_team(self.rights, values["team"])
        made = add_project(**values, rights=self.rights, now=timezone.now())
        return Response(project_row(made), status=201, headers={"Location": f"/api/v1/projects/{made.code}/"})


class OneProject(Endpoint):
    """One project."""

    @call("Read a project", answer=ProjectAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, code: str) -> Response:
        """Read a project."""
        return Response(project_row(visible_project(self.rights, code)))

    @call("Change a project", body=ProjectBody, answer=ProjectAnswer, refusals=(404, 409, 422), tag=TAG)
    def put(self, request: Request, code: str) -> Response:
        """Change a project; usage of its requests in open months is filed anew. Admins and finance of the team."""
        found = visible_project(self.rights, code)
        known = {name: getattr(found, name) for name in ("name", "cost_centre", "tags", "is_ended")}
        values = {**known, **self.take(ProjectBody)}
        return Response(
            project_row(change_project(project=found, rights=self.rights, now=timezone.now(), **values))
        )


class TeamLabels(Endpoint):
    """What usage of a team is filed under."""

    @call("Read a team's labels", answer=TeamLabelsAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read cost centre and tags of a team."""
        return Response(_team_row(visible_team(self.rights, slug)))

    @call("Set a team's labels", body=TeamLabelsBody, answer=TeamLabelsAnswer, refusals=(404, 422), tag=TAG)
    def put(self, request: Request, slug: str) -> Response:
        """Set cost centre and tags, for what is metered from now on: finance of the team, or an admin above."""
        team = visible_team(self.rights, slug)
        values = {"cost_centre": team.cost_centre, "tags": team.tags, **self.take(TeamLabelsBody)}
        return Response(_team_row(label_team(team=team, rights=self.rights, now=timezone.now(), **values)))


class RequestLabelsEndpoint(Endpoint):
    """What a request is filed under."""

    write_scope = Scope.LEASE_WRITE

    @call("Read a request's labels", answer=RequestLabelsAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read project, cost centre and tags of a request, and what they come to with those of project and team."""
        return Response(_request_row(visible_request(self.rights, uid)))

    @call(
        "Set a request's labels", body=RequestLabelsBody, answer=RequestLabelsAnswer, refusals=(404, 409, 422),
        tag=TAG,
    )  # fmt: skip
    def put(self, request: Request, uid: str) -> Response:
        """File a request under a project and tags; what it used in open months is filed anew.

        Whoever asked for it, and admins and finance of its team.
        """
        found = visible_request(self.rights, uid)
        own, values = _own(found), self.take(RequestLabelsBody)
        label_request(
            request=found,
            project=values.get("project", own["project"]),
            cost_centre=values.get("cost_centre"),
            tags=values.get("tags", own["tags"]),
            rights=self.rights,
            now=timezone.now(),
        )
        return Response(_request_row(found))


def project_row(project: Project) -> Row:
    """Return a project; its team must be at hand."""
    return {
        "code": project.code,
        "name": project.name,
        "team": project.team.slug,
        "cost_centre": project.cost_centre,
        "tags": project.tags,
        "is_ended": project.is_ended,
    }


def _team_row(team: Team) -> Row:
    return {"team": team.slug, "cost_centre": team.cost_centre, "tags": team.tags}


def _own(request: LeaseRequest) -> dict[str, Any]:
    row = requests_labels([request.pk]).get(request.pk)
    if row is None:
        return {"project": "", "cost_centre": "", "tags": {}}
    return {
        "project": row.project.code if row.project else "", "cost_centre": row.cost_centre, "tags": row.tags,
    }  # fmt: skip


def _request_row(request: LeaseRequest) -> Row:
    labels = request_labels(request)
    return {
        "request": request.uid,
        **_own(request),
        "filed_under": {
            "project": labels.project,
            "cost_centre": labels.cost_centre or request.team.cost_centre,
            "tags": dict(labels.tags),
        },
    }
