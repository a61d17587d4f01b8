from __future__ import annotations

from dataclasses import dataclass

from portal.common.rows import fetch
from portal.quotas.models import Quota
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights


@dataclass(frozen=True, slots=True)
class Headroom:
    """What a team could still be granted now, and which team of its lineage binds.

    Weighted thousandths; ``left_milli`` None means no ceiling anywhere above.
    """

    used_milli: int
    guaranteed_milli: int
    ceiling_milli: int | None
    left_milli: int | None
    bound_by: str


def headroom(team: Team) -> Headroom:
    """Return the smallest room left in the team's lineage."""
    rows = {row.team_id: row for row in Quota.objects.filter(team_id__in=team.lineage).select_related("team")}
    own = rows.get(team.pk)
    left: int | None = None
    bound_by = ""
    for row in rows.values():
        if row.ceiling_milli is None:
            continue
        room = row.ceiling_milli - row.used_milli
        if left is None or room < left:
            left, bound_by = room, row.team.name
    return Headroom(
        used_milli=own.used_milli if own else 0,
        guaranteed_milli=own.guaranteed_milli if own else 0,
        ceiling_milli=own.ceiling_milli if own else None,
        left_milli=left,
        bound_by=bound_by,
    )


def smallest_ceiling(team: Team) -> int | None:
    """Return the lowest ceiling of the lineage: more than this can never be granted to the team."""
    lowest: int | None
    ((lowest,),) = fetch(
        "SELECT min(ceiling_milli) FROM quotas_quota WHERE team_id = ANY(%s)", [team.lineage]
    )
    return lowest


def may_set_quota(rights: Rights, team: Team) -> bool:
    """Say whether this person decides on the team's quota: an admin of a team above, or an operator."""
    above = any(role == Role.ADMIN and team_id in team.lineage[:-1] for team_id, role in rights.held)
    return above or rights.has(team, Role.OPERATOR)
