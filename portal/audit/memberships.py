"""Members of teams, changed and written down. Here because the audit list lies above teams."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.accounts.models import User
from portal.audit.services import record
from portal.teams import services as teams
from portal.teams.models import Team
from portal.teams.selectors import Rights


@transaction.atomic
def give_role(
    *, team: Team, user: User, role: str, rights: Rights, now: datetime, ends_at: datetime | None = None
) -> bool:
    """Give a person a role and write it down; False when they had it just so. Errors as in ``teams.services``."""
    is_new = teams.give_role(team=team, user=user, role=role, rights=rights, now=now, ends_at=ends_at)
    until = {"until": ends_at.isoformat()} if ends_at else {}
    if is_new:
        record(
            rights.user, "member.added", user.username, at=now, team_id=team.pk, team=team.slug, role=role, **until
        )  # fmt: skip
    return is_new


@transaction.atomic
def end_role(*, team: Team, membership_id: int, rights: Rights, now: datetime) -> str:
    """Take a role away, write it down and return the person's name. Errors as in ``teams.services``."""
    ended = teams.end_role(team=team, membership_id=membership_id, rights=rights)
    name = ended.user.username
    record(rights.user, "member.removed", name, at=now, team_id=team.pk, team=team.slug, role=ended.role)
    return str(ended.user)
