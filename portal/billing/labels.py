"""What usage is filed under: worked out from team, project and request, kept with the usage when it is metered."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from portal.audit.services import record
from portal.billing.models import PeriodState, UsageLabel, UsageRecord
from portal.billing.periods import hold_periods
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.common.retry import with_retries
from portal.common.sql import fetch
from portal.leases.labels import project_for, requests_labels
from portal.leases.models import Lease, LeaseRequest, RequestLabels
from portal.teams.labels import CODE, Labels, check_tags
from portal.teams.models import Project, Role, Team
from portal.teams.selectors import Rights, below

MOST_COST_CENTRE, MOST_NAME = 40, 80
NONE = Labels()


def labels_of(leases: Sequence[Lease]) -> dict[int, Labels]:
    """Return by lease id what its usage is filed under as of now, leases without any left out; two or three queries.

    Of a tag that several set the nearest counts: request, project, team, the team above.
    """
    asked = requests_labels([lease.request_id for lease in leases])
    of_teams = _tags_of_teams({lease.team_id for lease in leases})
    found = {}
    for lease in leases:
        own = asked.get(lease.request_id)
        tags = dict(of_teams.get(lease.team_id, {}))
        if own is None:
            labels = Labels(tags=tuple(sorted(tags.items())))
        else:
            project = own.project
            tags |= {**(project.tags if project else {}), **own.tags}
            centre = own.cost_centre or (project.cost_centre if project else "")
            labels = Labels(centre, project.code if project else "", tuple(sorted(tags.items())))
        if labels != NONE:
            found[lease.pk] = labels
    return found


def _tags_of_teams(team_ids: set[int]) -> dict[int, dict[str, str]]:
    """Return the tags of these teams with those of the teams above them; teams without any are left out."""
    tagged = dict(Team.objects.exclude(tags={}).values_list("pk", "tags"))
    found: dict[int, dict[str, str]] = defaultdict(dict)
    if tagged:
        for team in Team.objects.filter(pk__in=team_ids, lineage__overlap=list(tagged)):
            for pk in team.lineage:
                found[team.pk] |= tagged.get(pk, {})
    return found


def kept_labels(labels: Iterable[Labels]) -> dict[Labels, int]:
    """Return the id under which each combination is kept, new ones made."""
    wanted = {_digest(one): one for one in labels}
    if not wanted:
        return {}
    UsageLabel.objects.bulk_create(
        [
            UsageLabel(digest=digest, cost_centre=one.cost_centre, project=one.project, tags=dict(one.tags))
            for digest, one in sorted(wanted.items())
        ],
        ignore_conflicts=True,
    )
    rows = UsageLabel.objects.filter(digest__in=wanted).values_list("digest", "pk")
    return {wanted[digest]: pk for digest, pk in rows}


def read_labels(ids: Iterable[int]) -> dict[int, Labels]:
    """Return kept combinations by id."""
    return {
        row.pk: Labels(row.cost_centre, row.project, tuple(sorted(row.tags.items())))
        for row in UsageLabel.objects.filter(pk__in=set(ids))
    }


def _digest(labels: Labels) -> str:
    text = json.dumps([labels.cost_centre, labels.project, dict(labels.tags)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tag_names(teams: Iterable[Team], period_id: int) -> list[str]:
    """Return the names of tags that usage of these teams has in a month, or that they would have if metered now."""
    ids = [team.pk for team in teams]
    used = fetch(
        "SELECT DISTINCT jsonb_object_keys(b.tags) FROM billing_usagelabel b WHERE EXISTS (SELECT FROM"
        " billing_usagerecord u WHERE u.label_id = b.id AND u.period_id = %s AND u.team_id = ANY(%s))",
        [period_id, ids],
    )
    own = _tags_of_teams(set(ids)).values()
    return sorted({name for (name,) in used} | {name for tags in own for name in tags})


def may_label_team(rights: Rights, team: Team) -> bool:
    """Say whether this person sets cost centre and tags of a team: its finance, or an admin or operator above it."""
    above = team.lineage[:-1] or team.lineage
    is_above = any(role == Role.ADMIN and team_id in above for team_id, role in rights.held)
    return is_above or rights.has(team, Role.FINANCE, Role.OPERATOR)


@transaction.atomic
def label_team(
    *, team: Team, cost_centre: str, tags: Mapping[str, object], rights: Rights, now: datetime
) -> Team:
    """Set a team's cost centre and tags, for what is metered from now on; raises Forbidden and Invalid."""
    if not may_label_team(rights, team):
        raise Forbidden(_("Finance of the team or an admin of a team above decides on this."))
    locked = Team.objects.select_for_update().get(pk=team.pk)
    locked.cost_centre, locked.tags = _cost_centre(cost_centre), check_tags(tags)
    locked.save(update_fields=["cost_centre", "tags"])
    record(
        rights.user, "team.labelled", team.slug, at=now,
        team_id=team.pk, cost_centre=locked.cost_centre, tags=locked.tags,
    )  # fmt: skip
    return locked


def may_set_projects(rights: Rights, team: Team) -> bool:
    """Say whether this person makes and changes projects of a team: its admins and finance, or those above."""
    return rights.has(team, Role.ADMIN, Role.FINANCE)


def add_project(
    *, team: Team, code: str, name: str, cost_centre: str, tags: Mapping[str, object], rights: Rights,
    now: datetime,
) -> Project:  # fmt: skip
    """Make a project that requests of a team and of those below it can name; raises Forbidden and Invalid."""
    if not may_set_projects(rights, team):
        raise Forbidden(_("An admin or finance of the team makes its projects."))
    code, name = code.strip(), name.strip()
    if not CODE.fullmatch(code):
        raise Invalid(
            fields={"code": _("A code has letters, digits, “_”, “.” and “-”, at most 40, such as EU-4711.")}
        )
    if Project.objects.filter(code__iexact=code).exists():
        raise Invalid(fields={"code": _("Another project has this code. Choose a different one.")})
    made = Project(
        team=team, code=code, name=_project_name(name), cost_centre=_cost_centre(cost_centre),
        tags=check_tags(tags), created_at=now,
    )  # fmt: skip
    with transaction.atomic():
        made.save(force_insert=True)
        record(rights.user, "project.added", code, at=now, team_id=team.pk, **_told(made))
    return made


def change_project(
    *, project: Project, name: str, cost_centre: str, tags: Mapping[str, object], is_ended: bool, rights: Rights,
    now: datetime,
) -> Project:  # fmt: skip
    """Change a project; usage of its requests in open months is filed anew. Raises Forbidden and Invalid.

    Locks the leases of its requests; may be run again at any time.
    """
    if not may_set_projects(rights, project.team):
        raise Forbidden(_("An admin or finance of the team makes its projects."))
    fields = {
        "name": _project_name(name), "cost_centre": _cost_centre(cost_centre), "tags": check_tags(tags),
        "is_ended": is_ended,
    }  # fmt: skip

    @transaction.atomic
    def change() -> Project:
        ids = list(RequestLabels.objects.filter(project=project).values_list("request_id", flat=True))
        leases = _held_leases(ids)
        locked = Project.objects.select_for_update().get(pk=project.pk)
        for field, value in fields.items():
            setattr(locked, field, value)
        locked.save(update_fields=list(fields))
        _file_anew(leases)
        record(rights.user, "project.changed", locked.code, at=now, team_id=locked.team_id, **_told(locked))
        return locked

    return with_retries(change)


def may_label_request(rights: Rights, request: LeaseRequest) -> bool:
    """Say whether this person files a request under a project and tags: who asked, admins and finance of its team."""
    is_own = request.author_id == rights.user.pk and rights.has(request.team, Role.RESEARCHER, Role.ADMIN)
    return is_own or rights.has(request.team, Role.ADMIN, Role.FINANCE)


def may_set_cost_centre(rights: Rights, request: LeaseRequest) -> bool:
    """Say whether this person gives a request a cost centre of its own: admins and finance of its team."""
    return rights.has(request.team, Role.ADMIN, Role.FINANCE)


def label_request(
    *, request: LeaseRequest, project: str, cost_centre: str | None, tags: Mapping[str, object],
    rights: Rights, now: datetime,
) -> Labels:  # fmt: skip
    """File a request under a project ("" for none), a cost centre (None leaves it) and tags; returns what holds.

    What its leases used in open months is filed anew, closed months stay. Raises NotFound, Forbidden and Invalid.
    Locks its leases; may be run again at any time.
    """
    if not may_label_request(rights, request):
        raise Forbidden(_("Whoever asked for it files it, or an admin or finance of the team."))
    checked = check_tags(tags)
    known = RequestLabels.objects.filter(request=request).select_related("project").first()
    kept = known.project if known else None
    chosen = kept if kept is not None and kept.code == project else project_for(request.team, project)
    centre = known.cost_centre if known else ""
    if cost_centre is not None and _cost_centre(cost_centre) != centre:
        if not may_set_cost_centre(rights, request):
            raise Forbidden(_("An admin or finance of the team gives a request a cost centre of its own."))
        centre = _cost_centre(cost_centre)

    @transaction.atomic
    def change() -> None:
        leases = _held_leases([request.pk])
        RequestLabels.objects.update_or_create(
            request=request, defaults={"project": chosen, "cost_centre": centre, "tags": checked}
        )
        _file_anew(leases)
        record(
            rights.user, "request.labelled", request.uid, at=now, team_id=request.team_id,
            project=chosen.code if chosen else "", cost_centre=centre, tags=checked,
        )  # fmt: skip

    with_retries(change)
    return request_labels(request)


def request_labels(request: LeaseRequest) -> Labels:
    """Return what usage of a request is filed under as of now, tags of its team and project included."""
    return labels_of([Lease(pk=0, request=request, team=request.team)]).get(0, NONE)


def visible_projects(rights: Rights) -> list[Project]:
    """Return the projects that this person may name or look at: of teams in sight and of those above them."""
    ids = [pk for pk, _role in rights.held]
    above = {
        pk for lineage in Team.objects.filter(pk__in=ids).values_list("lineage", flat=True) for pk in lineage
    }
    return list(Project.objects.filter(below(ids, "team__") | Q(team__in=above)).select_related("team"))


def visible_project(rights: Rights, code: str) -> Project:
    """Return the project of this code, or raise NotFound also for one out of sight."""
    found = next((project for project in visible_projects(rights) if project.code == code), None)
    if found is None:
        raise NotFound
    return found


def _held_leases(request_ids: Sequence[int]) -> list[Lease]:
    """Lock the leases of requests, as metering does: it waits, and files what it writes then by the new labels."""
    rows = Lease.objects.select_for_update(of=("self",)).filter(request__in=request_ids)
    return list(rows.order_by("pk"))


def _file_anew(leases: Sequence[Lease]) -> None:
    """File what open months have of these leases under the labels that hold now."""
    labels = labels_of(leases)
    kept = kept_labels(labels.values())
    of_label: dict[int | None, list[int]] = defaultdict(list)
    for lease in leases:
        of_label[kept.get(labels.get(lease.pk, NONE))].append(lease.pk)
    billed_in = (
        UsageRecord.objects.filter(lease__in=leases).order_by().values_list("period__starts_at", flat=True)
    )
    # Held, so that none closes between being found open and being written to: the database would refuse all of it.
    held = hold_periods(billed_in.distinct()).values()
    months = [period.pk for period in held if period.state == PeriodState.OPEN]
    for label_id, ids in of_label.items():
        usage = UsageRecord.objects.filter(lease__in=ids, period__in=months)
        usage.exclude(label=label_id).update(label=label_id)


def _cost_centre(text: str) -> str:
    text = text.strip()
    if len(text) > MOST_COST_CENTRE or not text.isprintable():
        raise Invalid(fields={"cost_centre": _("A cost centre has at most 40 characters.")})
    return text


def _project_name(text: str) -> str:
    text = text.strip()
    if not 1 <= len(text) <= MOST_NAME or not text.isprintable():
        raise Invalid(fields={"name": _("Give the project a name of 1 to 80 characters.")})
    return text


def _told(project: Project) -> dict[str, Any]:
    return {
        "name": project.name, "cost_centre": project.cost_centre, "tags": project.tags,
        "is_ended": project.is_ended,
    }  # fmt: skip
