"""Projects and tags of requests: what a new request may name, and what requests are filed under."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.utils.translation import gettext as _

from portal.common.errors import Invalid
from portal.leases.models import LeaseRequest, RequestLabels
from portal.teams.models import Project, Team


def project_for(team: Team, code: str) -> Project | None:
    """Return the project that a request of a team names, None for ""; raises Invalid where it cannot name it."""
    if not code:
        return None
    found = Project.objects.filter(code=code, team__in=team.lineage).first()
    if found is None:
        raise Invalid(fields={"project": _("This team has no project with this code.")})
    if found.is_ended:
        raise Invalid(fields={"project": _("This project is ended: choose another one.")})
    return found


def open_projects(teams: Collection[Team]) -> list[Project]:
    """Return the projects that new requests of these teams can name."""
    ids = {pk for team in teams for pk in team.lineage}
    return list(Project.objects.filter(team__in=ids, is_ended=False).select_related("team"))


def requests_labels(request_ids: Collection[int]) -> dict[int, RequestLabels]:
    """Return what requests are filed under, by request id, with their projects; one query."""
    rows = RequestLabels.objects.filter(request__in=set(request_ids)).select_related("project")
    return {row.request_id: row for row in rows}


def keep_labels(request: LeaseRequest, project: Project | None, tags: Mapping[str, str]) -> None:
    """Store the labels of a new request; nothing for one without any."""
    if project is not None or tags:
        RequestLabels.objects.create(request=request, project=project, tags=dict(tags))
