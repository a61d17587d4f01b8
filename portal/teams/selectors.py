"""Who may see and do what: every object check starts from the team an object belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Q, QuerySet

from portal.accounts.models import User
from portal.common.errors import Forbidden, NotFound
from portal.common.rows import Rows
from portal.common.sql import fetch
from portal.teams.models import Membership, Role, Team

_TEAMS = Rows(Team)
_HELD = """
SELECT m.team_id, m.role, t.name, t.parent_id IS NULL FROM teams_membership m JOIN teams_team t ON t.id = m.team_id
WHERE m.user_id = %s AND (m.ends_at IS NULL OR m.ends_at > statement_timestamp()) ORDER BY m.id
"""
DECIDES = frozenset({Role.APPROVER, Role.ADMIN})
SEES_TEAM = frozenset({Role.RESEARCHER, Role.ADMIN, Role.APPROVER, Role.FINANCE, Role.OPERATOR})


def operators() -> list[User]:
    """Return the people who run the fleet: operators of the organisation itself."""
    rows = Membership.objects.filter(role=Role.OPERATOR, team__parent=None).select_related("user")
    return [row.user for row in rows.order_by("user_id")]


@dataclass(frozen=True)
class Rights:
    """A person's memberships, read once per request: (team id, role) pairs."""

    user: User

    @cached_property
    def _rows(self) -> list[tuple[int, str, str, bool]]:
        return [(row[0], row[1], row[2], row[3]) for row in fetch(_HELD, [self.user.pk])]

    @cached_property
    def held(self) -> tuple[tuple[int, str], ...]:
        """Return the (team id, role) pairs of this person."""
        return tuple((team, role) for team, role, _name, _is_root in self._rows)

    def name_of(self, team_id: int) -> str:
        """Return the name of a team in which a role is held directly; "" of any other."""
        return next((name for team, _role, name, _is_root in self._rows if team == team_id), "")

    def teams_with(self, roles: Iterable[str]) -> list[int]:
        """Return the ids of teams where one of the roles is held directly."""
        wanted = set(roles)
        return [team for team, role in self.held if role in wanted]

    def has(self, team: Team, *roles: str) -> bool:
        """Say whether one of the roles is held on the team or on one above it."""
        return any(role in roles and team_id in team.lineage for team_id, role in self.held)

    def has_anywhere(self, *roles: str) -> bool:
        """Say whether one of the roles is held on any team."""
        return any(role in roles for _team, role in self.held)

    @cached_property
    def held_on_root(self) -> frozenset[str]:
        """Return the roles held on the organisation itself: fleet, prices and months belong to it."""
        if not self.has_anywhere(Role.OPERATOR, Role.FINANCE):
            return frozenset()
        return frozenset(role for _team, role, _name, is_root in self._rows if is_root)

    @property
    def is_operator(self) -> bool:
        """Operators of the organisation run the fleet."""
        return Role.OPERATOR in self.held_on_root

    @property
    def is_finance(self) -> bool:
        """Finance of the organisation owns prices and months; finance of a team sees its invoices only."""
        return Role.FINANCE in self.held_on_root

    def require(self, team: Team, *roles: str) -> None:
        """Raise NotFound when the team is not visible, Forbidden when the role is missing."""
        if not self.has(team, *SEES_TEAM):
            raise NotFound
        if not self.has(team, *roles):
            raise Forbidden


def below(team_ids: Iterable[int], prefix: str = "") -> Q:
    """Return the filter for rows whose team (at ``prefix``) is one of these or below one."""
    ids = list(team_ids)
    if not ids:
        return Q(pk__in=[])
    return Q(**{f"{prefix}lineage__overlap": ids})


def visible_teams(rights: Rights, *roles: str) -> QuerySet[Team]:
    """Return the teams where one of the roles (default: any) reaches, with quota at hand."""
    return Team.objects.filter(below(rights.teams_with(roles or SEES_TEAM)))


def visible_team(rights: Rights, slug: str) -> Team:
    """Return the team with this slug, or raise NotFound also for one out of sight."""
    team = _TEAMS.first("it.slug = %s", [slug])
    if team is None or not rights.has(team, *SEES_TEAM):
        raise NotFound
    return team
