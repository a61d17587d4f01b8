"""Who decides on what needs an approval, deputies too, and how a decision in somebody's place is written down."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from portal.accounts.models import User
from portal.teams.models import Membership, Team
from portal.teams.selectors import DECIDES, Rights, deputies_of


def approvers(team: Team, *, besides: Collection[int] = (), is_above: bool = False) -> list[User]:
    """Return the people who may approve for the team, or with ``is_above`` those of the teams above it alone.

    Deputies too. Neither those whose ids are in ``besides``, nor anybody as their deputy.
    """
    lineage = team.lineage[:-1] if is_above else team.lineage
    rows = Membership.objects.filter(team_id__in=lineage, role__in=DECIDES).exclude(user__in=besides)
    people = [row.user for row in rows.select_related("user")]
    people += [user for user in deputies_of(people) if user.pk not in besides]
    return list({user.pk: user for user in people}.values())


def absent(seat: Rights) -> User | None:
    """Return for whom a deputy decides with these rights; None where people decide by their own."""
    return seat.user if seat.since else None


def audited(decided_for: User | None) -> dict[str, str]:
    """Return what the audit entry of a deputy's decision says besides."""
    return {"on_behalf_of": decided_for.username} if decided_for else {}


def said_by(actor: User, decided_for: User | None) -> dict[str, Any]:
    """Return who decided, for a notification."""
    return {"by": str(actor), **({"on_behalf_of": str(decided_for)} if decided_for else {})}
