"""Roles with an end: people are told before it, and what has ended is cleared away."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from portal.audit.services import record
from portal.notifications.models import Notification
from portal.notifications.services import notify
from portal.teams.models import Membership

TOLD_BEFORE: Final = timedelta(days=3)
MOST: Final = 500
ENDS_SOON: Final = "role.ends_soon"


def tell_of_ends(*, now: datetime) -> int:
    """Tell people whose roles end within three days, once for each end; return how many were new. Safe to repeat."""
    rows = Membership.everything.filter(ends_at__gt=now, ends_at__lte=now + TOLD_BEFORE).order_by(
        "ends_at", "pk"
    )
    by_target = {
        f"role-{pk}#{int(end.timestamp())}": pk for pk, end in rows.values_list("pk", "ends_at") if end
    }
    told = Notification.objects.filter(kind=ENDS_SOON, target__in=list(by_target))
    for target in told.values_list("target", flat=True):
        by_target.pop(target, None)
    untold = {pk: target for target, pk in list(by_target.items())[:MOST]}
    found = list(rows.filter(pk__in=untold).select_related("user", "team"))
    for row in found:
        assert row.ends_at is not None
        notify(
            [row.user], ENDS_SOON, target=untold[row.pk], at=now,
            team=row.team.slug, team_name=row.team.name, role=row.role, ends_at=row.ends_at.isoformat(),
        )  # fmt: skip
    return len(found)


@transaction.atomic
def clear_ended_roles(*, now: datetime) -> int:
    """Clear away roles that have ended, write it down and tell their holders; returns how many. Safe to repeat.

    The rights ended before, at the instant itself: they are read without what has ended.
    """
    rows = Membership.everything.select_for_update(of=("self",), skip_locked=True).filter(ends_at__lte=now)
    found = list(rows.select_related("user", "team").order_by("pk")[:MOST])
    for row in found:
        record(
            None, "member.ended", row.user.username, at=now, team_id=row.team_id, team=row.team.slug, role=row.role
        )  # fmt: skip
        notify(
            [row.user], "role.ended", target=f"role-{row.pk}", at=now,
            team=row.team.slug, team_name=row.team.name, role=row.role,
        )  # fmt: skip
    Membership.everything.filter(pk__in=[row.pk for row in found]).delete()
    return len(found)
