from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.teams.models import Membership, Role, Team
from portal.teams.selectors import Rights

# Who may give which role: a team admin what concerns the team, an operator what concerns all of Berth.
GIVES: dict[str, frozenset[str]] = {
    Role.ADMIN: frozenset({Role.RESEARCHER, Role.APPROVER, Role.ADMIN}),
    Role.OPERATOR: frozenset(Role.values),
}


@transaction.atomic
def create_team(*, name: str, slug: str, parent: Team | None, now: datetime, cost_centre: str = "") -> Team:
    """Create a team below ``parent`` with its lineage filled in."""
    team = Team.objects.create(name=name, slug=slug, parent=parent, cost_centre=cost_centre, created_at=now)
    team.lineage = [*(parent.lineage if parent else []), team.pk]
    team.save(update_fields=["lineage"])
    return team


def add_member(*, team: Team, user: User, role: str, now: datetime) -> Membership:
    """Give a person a role in a team. Safe to repeat."""
    membership, _created = Membership.objects.get_or_create(
        team=team, user=user, role=role, defaults={"created_at": now}
    )
    return membership


def roles_to_give(rights: Rights, team: Team) -> tuple[str, ...]:
    """Return the roles this person may give and take in the team: never one above their own."""
    given: set[str] = set()
    for role, below in GIVES.items():
        if rights.has(team, role):
            given |= below
    return tuple(role for role in Role.values if role in given)


def give_role(*, team: Team, user: User, role: str, rights: Rights, now: datetime) -> bool:
    """Give a person a role in a team; False when they had it. Call inside a transaction.

    Raises Invalid for an unknown role, NotFound and Forbidden for a team or role out of reach.
    """
    rights.require(team, *GIVES)
    if role not in Role.values:
        raise Invalid(fields={"role": _("Choose one of the roles.")})
    if role not in roles_to_give(rights, team):
        raise Forbidden(_("Only somebody with that role or above can give it."))
    _membership, created = Membership.objects.get_or_create(
        team=team, user=user, role=role, defaults={"created_at": now}
    )
    return created


def end_role(*, team: Team, membership_id: int, rights: Rights) -> Membership:
    """Take a role away and return what it was. Call inside a transaction.

    Raises NotFound for a membership of another team, Forbidden for a role above one's own and
    Conflict for the last admin: somebody must be able to run the team.
    """
    rights.require(team, *GIVES)
    Team.objects.select_for_update().get(pk=team.pk)
    found = Membership.objects.select_related("user").filter(pk=membership_id, team=team).first()
    if found is None:
        raise NotFound
    if found.role not in roles_to_give(rights, team):
        raise Forbidden(_("Only somebody with that role or above can take it away."))
    others = Membership.objects.filter(team_id__in=team.lineage, role=Role.ADMIN).exclude(pk=found.pk)
    if found.role == Role.ADMIN and not others.exists():
        raise Conflict(_("This is the last admin here. Make somebody else admin first."))
    Membership.objects.filter(pk=found.pk).delete()
    return found
