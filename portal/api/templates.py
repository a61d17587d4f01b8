"""Templates over HTTP: what a team asks for often, by name."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.requests import MOST_SECONDS, spec_of
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.leases.models import RequestTemplate
from portal.leases.states import Opening
from portal.leases.templates import (
    LONGEST_NAME,
    remove_template,
    save_template,
    visible_template,
    visible_templates,
)
from portal.teams.selectors import visible_team

TAG = "requests"


class TemplateBody(Body):
    """A name, and what is asked for by it."""

    team = Text(most=50)
    name = Text(most=LONGEST_NAME)
    flavor = Text(most=50)
    duration_s = Whole(least=1, most=MOST_SECONDS)
    count = Whole(least=1, most=1000, default=1)
    opens = serializers.ChoiceField(
        Opening.choices, default="device", help_text="What the page offers first once it is active."
    )
    is_preemptible = Flag(default=False, help_text="It may be preempted after a warning, and costs less.")


class TemplateAnswer(ResponseShape):
    """A template of a team."""

    id = s.CharField()
    team = s.SlugField()
    name = s.CharField()
    flavor = s.SlugField()
    duration_s = s.IntegerField()
    count = s.IntegerField()
    opens = s.ChoiceField(Opening.choices)
    is_preemptible = s.BooleanField()
    is_offered = s.BooleanField(help_text="Its flavor can be asked for now.")
    author = s.CharField()
    saved_at = s.DateTimeField()


class TeamTemplates(Endpoint):
    """The templates of one's teams."""

    write_scope = Scope.LEASE_WRITE
    parameters = PARAMETERS

    @call("List templates", answer=TemplateAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the templates of the teams one asks for, newest first."""
        pages = Pages()
        rows = pages.page(visible_templates(self.rights), request)
        return Response(pages.answer([template_row(row) for row in rows]))

    @call(
        "Save a template",
        body=TemplateBody,
        answer=TemplateAnswer,
        status=201,
        refusals=(403, 404, 409, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request) -> Response:
        """Keep what is asked for often under a name; the team's template of that name becomes it. Team admins."""
        values = self.take(TemplateBody)
        name = values.pop("name")
        made = save_template(
            team=visible_team(self.rights, values["team"]),
            actor=self.person,
            rights=self.rights,
            name=name,
            spec=spec_of(values),
            now=timezone.now(),
        )
        return Response(
            template_row(made), status=201, headers={"Location": f"/api/v1/templates/{made.uid}/"}
        )


class OneTemplate(Endpoint):
    """One template."""

    write_scope = Scope.LEASE_WRITE

    @call("Read a template", answer=TemplateAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read one template."""
        return Response(template_row(visible_template(self.rights, uid)))

    @call("Remove a template", status=204, refusals=(403, 404), tag=TAG)
    def delete(self, request: Request, uid: str) -> Response:
        """Forget a template; what was asked by it stays. Team admins."""
        found = visible_template(self.rights, uid)
        remove_template(template=found, actor=self.person, rights=self.rights, now=timezone.now())
        return Response(status=204)


def template_row(row: RequestTemplate) -> Row:
    """Return a template; team, flavor and author must be at hand."""
    return {
        "id": row.uid,
        "team": row.team.slug,
        "name": row.name,
        "flavor": row.flavor.slug,
        "duration_s": row.duration_s,
        "count": row.count,
        "opens": str(row.opens),
        "is_preemptible": row.is_preemptible,
        "is_offered": row.flavor.is_active,
        "author": row.author.username,
        "saved_at": instant(row.created_at),
    }
