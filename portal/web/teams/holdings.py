"""What a team holds and waits for now, as rows of its page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from portal.billing.selectors import cost_so_far
from portal.common.moments import span
from portal.leases.forecasting import sentence
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LIVE_LEASES, RequestState
from portal.teams.models import Team
from portal.web.figures import money

SHOWN = 20


@dataclass(frozen=True, slots=True)
class HeldLeaseRow:
    """A live lease; ``cost`` None is unknown."""

    uid: str
    name: str
    person: str
    team: str
    flavor: str
    count: int
    node: str
    state: str
    ends_at: datetime
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class WaitingRequestRow:
    """A request that waits, with the main reason as a sentence."""

    uid: str
    name: str
    person: str
    team: str
    flavor: str
    count: int
    length: str | None
    state: str
    since: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a list and how many there are in all."""

    rows: list[HeldLeaseRow] | list[WaitingRequestRow]
    total: int


def leases_of(team: Team, *, now: datetime) -> FirstRows:
    """Return the live leases of the team and those below it, the next to end first."""
    found = Lease.objects.filter(team__lineage__contains=[team.pk], state__in=LIVE_LEASES)
    rows = list(
        found.select_related("team", "user", "flavor", "node", "request").order_by("not_after")[:SHOWN]
    )
    costs = cost_so_far(rows, now=now)
    return FirstRows(
        [
            HeldLeaseRow(
                uid=row.uid,
                name=row.request.name,
                person=str(row.user),
                team=row.team.name,
                flavor=row.flavor.shown_name,
                count=row.count,
                node=row.node.name,
                state=row.state,
                ends_at=row.not_after,
                cost=money(costs[row.pk]),
            )
            for row in rows
        ],
        found.count() if len(rows) == SHOWN else len(rows),
    )


def waiting_of(team: Team) -> FirstRows:
    """Return what the team and those below it wait for, in the order of the queue."""
    found = LeaseRequest.objects.filter(
        team__lineage__contains=[team.pk], state__in=(RequestState.QUEUED, RequestState.AWAITING_APPROVAL)
    )
    rows = list(
        found.select_related("team", "author", "flavor").order_by("-priority", "submitted_at", "id")[:SHOWN]
    )
    return FirstRows([_waiting(row) for row in rows], found.count() if len(rows) == SHOWN else len(rows))


def _waiting(row: LeaseRequest) -> WaitingRequestRow:
    return WaitingRequestRow(
        uid=row.uid,
        name=row.name,
        person=str(row.author),
        team=row.team.name,
        flavor=row.flavor.shown_name,
        count=row.count,
        length=span(row.remaining_s),
        state=row.state,
        since=row.submitted_at,
        reason=sentence(row.reasons[0]) if row.reasons else "",
    )
