"""Where a team and its people stand by fair share: entitled, used, and who would go first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from portal.accounts.models import User
from portal.common.sql import fetch
from portal.policies.selectors import active_policy
from portal.quotas.models import PersonUsage
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from scheduler.engine.model import DecayedUsage, TeamQuota
from scheduler.engine.order.fair_share import FairShare, decayed, team_fair_shares

QUOTAS = (
    "SELECT t.id, t.parent_id, coalesce(q.guaranteed_milli, 0) FROM teams_team t"
    " LEFT JOIN quotas_quota q ON q.team_id = t.id ORDER BY t.id"
)
# Orders that weigh what was used; under the others a standing is for information.
WEIGH_USE = frozenset({"fair_tree", "default", "guarantees_first"})


@dataclass(frozen=True, slots=True)
class TeamView:
    """A team's standing; ``people`` are those whose standing the caller may see, who goes first first.

    ``as_of`` is when usage was last settled, None when nothing was ever used.
    """

    order: str
    counts: bool
    half_life_s: int
    as_of: datetime | None
    team: FairShare
    people: list[tuple[User, FairShare]]


def standing_of(team: Team, rights: Rights, *, now: datetime) -> TeamView:
    """Return where a visible team stands among its siblings, by usage decayed to ``now``.

    Admins and operators see all people of the team, everybody else themselves.
    """
    policy = active_policy()
    half_life_s = max(policy.half_life_s, 1)
    rows = list(PersonUsage.objects.order_by("team_id", "user_id"))
    people = [
        DecayedUsage(
            row.team_id,
            row.user_id,
            round(decayed(row.used_milli_s, max(0.0, (now - row.as_of).total_seconds()), half_life_s)),
        )
        for row in rows
    ]
    quotas = [
        TeamQuota(pk, parent, None, 0, guaranteed_milli=guaranteed)
        for pk, parent, guaranteed in fetch(QUOTAS)
    ]
    found = team_fair_shares(quotas, people, team.pk)
    sees_all = rights.has(team, Role.ADMIN, Role.OPERATOR)
    shown = [(pk, at) for pk, at in found.people if sees_all or pk == rights.user.pk]
    users = User.objects.in_bulk([pk for pk, _ in shown])
    return TeamView(
        order=policy.order,
        counts=policy.order in WEIGH_USE,
        half_life_s=half_life_s,
        as_of=max((row.as_of for row in rows), default=None),
        team=found.team,
        people=[(users[pk], at) for pk, at in shown],
    )
