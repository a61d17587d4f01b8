"""What is known of idling, for pages and the API."""

from __future__ import annotations

from portal.idle.models import IDLE, IdleStanding
from portal.leases.models import Lease
from portal.leases.selectors import visible_leases
from portal.leases.states import RUNNING_LEASES
from portal.teams.models import Team
from portal.teams.selectors import Rights, below

MOST = 500


def idle_now(rights: Rights, *, team: Team | None = None, most: int = MOST) -> list[IdleStanding]:
    """Return leases in sight that idle, of a team and those below it if wished, the longest idle first."""
    leases = visible_leases(rights).filter(state__in=RUNNING_LEASES)
    rows = IdleStanding.objects.filter(state__in=IDLE, lease__in=leases.order_by())
    if team is not None:
        rows = rows.filter(below([team.pk], "lease__team__"))
    relations = ("team", "user", "flavor", "flavor__device_model", "node", "request")
    return list(rows.select_related(*(f"lease__{name}" for name in relations)).order_by("since", "pk")[:most])


def standing_of(lease: Lease) -> IdleStanding | None:
    """Return what a lease was last judged to do; None where it was never judged."""
    return IdleStanding.objects.filter(pk=lease.pk).first()
