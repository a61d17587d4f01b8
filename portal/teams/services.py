from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import entering
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
    membership, _created = Membership.everything.get_or_create(
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


def give_role(
    *, team: Team, user: User, role: str, rights: Rights, now: datetime, ends_at: datetime | None = None
) -> bool:
    """Give a person a role in a team, from ``ends_at`` on no more; False when they had it just so.

    A role that they have gets the new end. Call inside a transaction; locks the team. Raises Invalid for an unknown
    role or an end that has passed, NotFound and Forbidden for a team or role out of reach, and Conflict where nobody
    would be left to run the team.
    """
    check_may_give(team=team, role=role, rights=rights, now=now, ends_at=ends_at)
    Team.objects.select_for_update().get(pk=team.pk)
    clear_ended(team_id=team.pk, user=user, role=role, now=now)
    held, created = Membership.everything.select_for_update().get_or_create(
        team=team, user=user, role=role, defaults={"created_at": now, "ends_at": ends_at}
    )
    if created or held.ends_at == ends_at:
        return created
    if ends_at is not None:
        _require_others(team, held)
    Membership.everything.filter(pk=held.pk).update(ends_at=ends_at)
    return True


def check_may_give(*, team: Team, role: str, rights: Rights, now: datetime, ends_at: datetime | None) -> None:
    """Raise where this person may not give that role until then; errors as in ``give_role``."""
    rights.require(team, *GIVES)
    if role not in Role.values:
        raise Invalid(fields={"role": _("Choose one of the roles.")})
    if role not in roles_to_give(rights, team):
        raise Forbidden(_("Only somebody with that role or above can give it."))
    if ends_at is not None and ends_at <= now:
        raise Invalid(fields={"ends_at": _("Choose a time in the future, or leave it empty.")})
    latest = _own_end(team, role, rights)
    if latest is not None and (ends_at is None or ends_at > latest):
        raise Invalid(
            fields={"ends_at": _("Your own role ends before that: choose an end no later than yours.")}
        )


def _own_end(team: Team, role: str, rights: Rights) -> datetime | None:
    """Return when the last of the giver's roles ends that let them give this one; None where one has no end."""
    giving = [above for above, below in GIVES.items() if role in below]
    own = Membership.objects.filter(user=rights.user, role__in=giving, team_id__in=team.lineage)
    ends = list(own.values_list("ends_at", flat=True))
    return None if None in ends else max((end for end in ends if end is not None), default=None)


def clear_ended(*, team_id: int, user: User, role: str, now: datetime) -> None:
    """Clear away a membership that has ended, so that the role can be given anew. Call inside a transaction."""
    Membership.everything.filter(team_id=team_id, user=user, role=role, ends_at__lte=now).delete()


def _require_others(team: Team, held: Membership) -> None:
    """Raise Conflict where nobody else has this role of an admin, or an operator of the organisation, for good."""
    lasting = Membership.objects.filter(entering("user__"), role=held.role, ends_at=None).exclude(pk=held.pk)
    if held.role == Role.ADMIN and not lasting.filter(team_id__in=team.lineage).exists():
        raise Conflict(_("This is the last admin here. Make somebody else admin first."))
    if held.role == Role.OPERATOR and team.parent_id is None and not lasting.filter(team=team).exists():
        raise Conflict(_("This is the last operator. Make somebody else operator first, without an end."))


def end_role(*, team: Team, membership_id: int, rights: Rights) -> Membership:
    """Take a role away and return what it was. Call inside a transaction.

    Raises NotFound for a membership of another team, Forbidden for a role above one's own and
    Conflict for the last admin and the last operator: somebody must be able to run the team, and Berth.
    """
    rights.require(team, *GIVES)
    Team.objects.select_for_update().get(pk=team.pk)
    found = Membership.objects.select_related("user").filter(pk=membership_id, team=team).first()
    if found is None:
        raise NotFound
    if found.role not in roles_to_give(rights, team):
        raise Forbidden(_("Only somebody with that role or above can take it away."))
    if found.ends_at is None:
        _require_others(team, found)
    Membership.objects.filter(pk=found.pk).delete()
    return found
