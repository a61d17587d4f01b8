"""Templates of a team: its admins name what is asked for often, its members start from it."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.leases.models import RequestTemplate
from portal.leases.requests import RequestSpec, check_possible, check_spec
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, visible_teams

LONGEST_NAME = 60
MOST_TEMPLATES = 50


def visible_templates(rights: Rights) -> QuerySet[RequestTemplate]:
    """Return the templates of the teams that this person may ask for, by name; team and flavor are at hand."""
    teams = visible_teams(rights, Role.RESEARCHER, Role.ADMIN)
    return RequestTemplate.objects.filter(team__in=teams).select_related("team", "flavor", "author")


def visible_template(rights: Rights, uid: str) -> RequestTemplate:
    """Return the template of this name, or raise NotFound also for one out of sight."""
    found = visible_templates(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found


def spec_of_template(template: RequestTemplate) -> RequestSpec:
    """Return what is asked for by it."""
    return RequestSpec(
        flavor=template.flavor.slug,
        duration_s=template.duration_s,
        count=template.count,
        is_preemptible=template.is_preemptible,
        opens=template.opens,
    )


@transaction.atomic
def save_template(
    *, team: Team, actor: User, rights: Rights, name: str, spec: RequestSpec, now: datetime
) -> RequestTemplate:
    """Keep what a specification asks for under a name; one of that name becomes it. Safe to repeat.

    Raises Forbidden for whoever is no admin of the team, Invalid by field, Impossible for what could never start, and
    Conflict for one template too many. Locks the team.
    """
    rights.require(team, Role.RESEARCHER, Role.ADMIN)
    if not rights.has(team, Role.ADMIN):
        raise Forbidden(_("Only an admin of the team keeps templates."))
    name = name.strip()
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise Invalid(
            fields={"name": _("Give the template a name of 1 to %(n)d characters.") % {"n": LONGEST_NAME}}
        )
    flavor = check_spec(team, spec, now=now)
    check_possible(team, flavor, spec.count, spec.nodes)
    Team.objects.select_for_update(of=("self",)).get(pk=team.pk)
    others = RequestTemplate.objects.filter(team=team).exclude(name=name)
    if others.count() >= MOST_TEMPLATES:
        raise Conflict(
            _("The team has %(n)d templates, the most it may have. Remove one first.") % {"n": MOST_TEMPLATES}
        )
    values = {
        "opens": spec.opens,
        "flavor": flavor,
        "count": spec.count,
        "duration_s": spec.duration_s,
        "is_preemptible": spec.is_preemptible,
        "author": actor,
        "created_at": now,
    }
    made, _is_new = RequestTemplate.objects.update_or_create(team=team, name=name, defaults=values)
    record(actor, "template.saved", made.uid, at=now, team_id=team.pk, name=name)
    return made


@transaction.atomic
def remove_template(*, template: RequestTemplate, actor: User, rights: Rights, now: datetime) -> None:
    """Forget a template; what was asked by it stays. Raises Forbidden for whoever is no admin of its team."""
    if not rights.has(template.team, Role.ADMIN):
        raise Forbidden(_("Only an admin of the team keeps templates."))
    gone, _tables = RequestTemplate.objects.filter(pk=template.pk).delete()
    if gone:
        record(actor, "template.removed", template.uid, at=now, team_id=template.team_id, name=template.name)
