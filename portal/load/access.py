"""Whose demand a person may see: that of teams in sight; pools and the whole fleet are for operators and finance."""

from __future__ import annotations

from dataclasses import dataclass

from portal.common.errors import NotFound
from portal.fleet.models import DeviceModel
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team, visible_teams


@dataclass(frozen=True, slots=True)
class LoadScope:
    """Of what demand is told: a pool, a team with those below it, or, with neither, the whole fleet."""

    pool: DeviceModel | None = None
    team: Team | None = None


def sees_fleet(rights: Rights) -> bool:
    """Say whether a person sees pools and the whole fleet."""
    return rights.is_operator or rights.is_finance


def scope_in_sight(rights: Rights, *, pool: str, team: str) -> LoadScope:
    """Return what two slugs name; with neither the fleet, or the first own team of who does not see that.

    Raises NotFound for whatever is out of sight, and where both are named.
    """
    if pool and team:
        raise NotFound
    if team:
        return LoadScope(team=visible_team(rights, team))
    if not sees_fleet(rights):
        first = None if pool else visible_teams(rights).order_by("name", "pk").first()
        if first is None:
            raise NotFound
        return LoadScope(team=first)
    if pool:
        found = DeviceModel.objects.filter(slug=pool).first()
        if found is None:
            raise NotFound
        return LoadScope(pool=found)
    return LoadScope()
