from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.accounts.models import User
from portal.teams.models import Membership, Team


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
