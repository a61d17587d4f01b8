"""Who may see and do what: every object check starts from the team an object belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Q, QuerySet

from portal.accounts.models import User
from portal.common.errors import Forbidden, NotFound
from portal.common.rows import Rows
from portal.common.sql import fetch, in_sql
from portal.teams.models import Delegation, Membership, Role, Team

_TEAMS = Rows(Team)
DECIDES = frozenset({Role.APPROVER, Role.ADMIN})
# The roles of a person, and those by which people decide whose deputy they are now.
_HELD = f"""
SELECT m.team_id, m.role, t.name, t.parent_id IS NULL, NULL::bigint AS delegator, NULL::timestamptz, m.id
  FROM teams_membership m JOIN teams_team t ON t.id = m.team_id
 WHERE m.user_id = %(user)s AND (m.ends_at IS NULL OR m.ends_at > statement_timestamp())
 UNION ALL
SELECT m.team_id, m.role, t.name, t.parent_id IS NULL, d.delegator_id, d.starts_at, m.id
  FROM teams_delegation d
  JOIN accounts_user u ON u.id = d.delegator_id AND u.is_active
  JOIN teams_membership m ON m.user_id = d.delegator_id AND m.role IN {in_sql(DECIDES)}
   AND (m.ends_at IS NULL OR m.ends_at > statement_timestamp())
  JOIN teams_team t ON t.id = m.team_id
 WHERE d.deputy_id = %(user)s AND d.ended_at IS NULL
   AND d.starts_at <= statement_timestamp() AND d.ends_at > statement_timestamp()
 ORDER BY delegator NULLS FIRST, 7
"""  # noqa: S608 (our own roles)
SEES_TEAM = frozenset({Role.RESEARCHER, Role.ADMIN, Role.APPROVER, Role.FINANCE, Role.OPERATOR})


def operators() -> list[User]:
    """Return the people who run the fleet: operators of the organisation itself."""
    rows = Membership.objects.filter(role=Role.OPERATOR, team__parent=None).select_related("user")
    return [row.user for row in rows.order_by("user_id")]


@dataclass(frozen=True)
class Rights:
    """A person's memberships, read once per request: (team id, role) pairs.

    ``since`` is set on the rights of somebody for whom a deputy decides: from when on the deputy does. ``is_seen``:
    it is an operator who looks at what the person sees, without their secrets.
    """

    user: User
    since: datetime | None = None
    is_seen: bool = False

    @cached_property
    def _read(self) -> list[tuple[Any, ...]]:
        return fetch(_HELD, {"user": self.user.pk})

    @cached_property
    def _rows(self) -> list[tuple[int, str, str, bool]]:
        return [(row[0], row[1], row[2], row[3]) for row in self._read if row[4] is None]

    @cached_property
    def held(self) -> tuple[tuple[int, str], ...]:
        """Return the (team id, role) pairs of this person."""
        return tuple((team, role) for team, role, _name, _is_root in self._rows)

    @cached_property
    def stands_in_for(self) -> tuple[Rights, ...]:
        """Return the rights to decide of those whose deputy this person is now, for somebody with a role of their own.

        They are the delegator's roles of approver and team admin as they are now; what a delegator decides as a deputy
        is not handed on.
        """
        since = {row[4]: row[5] for row in self._read if row[4] is not None} if self.held else {}
        people = User.objects.in_bulk(since) if since else {}
        seats = []
        for pk, begun in since.items():
            seat = Rights(people[pk], begun)
            seat.__dict__["held"] = tuple((row[0], row[1]) for row in self._read if row[4] == pk)
            seat.__dict__["stands_in_for"] = ()
            seats.append(seat)
        return tuple(seats)

    @property
    def seats(self) -> tuple[Rights, ...]:
        """Return in whose place this person decides: their own first, then of those whose deputy they are."""
        return (self, *self.stands_in_for)

    @property
    def may_decide(self) -> bool:
        """Say whether there is any team in which this person decides on requests, also as a deputy."""
        return self.has_anywhere(*DECIDES) or bool(self.stands_in_for)

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

    def require_seats(self, team: Team, *parties: int | None) -> list[Rights]:
        """Return in whose place this person decides for the team on what ``parties`` (ids of people) ask for.

        Empty where it is their own, or only that of those whose deputy this person is: nobody decides on what is
        their own through a deputy. Raises NotFound and Forbidden as ``require`` does.
        """
        seats = [seat for seat in self.seats if seat.has(team, *DECIDES)]
        if not seats:
            self.require(team, *DECIDES)
        return [] if self.user.pk in parties else [seat for seat in seats if seat.user.pk not in parties]

    def require(self, team: Team, *roles: str) -> None:
        """Raise NotFound when the team is not visible, Forbidden when the role is missing."""
        if not self.has(team, *SEES_TEAM):
            raise NotFound
        if not self.has(team, *roles):
            raise Forbidden


def deputies_of(people: Iterable[User]) -> list[User]:
    """Return who stands in for one of these people now."""
    rows = Delegation.running.filter(delegator__in=[user.pk for user in people])
    return [row.deputy for row in rows.select_related("deputy").order_by("pk")]


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
