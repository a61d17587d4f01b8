"""Reading requests and leases: what a person may see, in what order they wait, what may be done now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Final

from django.db.models import Exists, OuterRef, Q, QuerySet

from portal.accounts.models import User
from portal.common.errors import NotFound
from portal.common.rows import Rows
from portal.common.sql import fetch, in_sql
from portal.fleet.models import Node
from portal.leases.models import (
    ApprovalStep,
    Lease,
    LeaseExtension,
    LeaseRequest,
    Reservation,
    Workshop,
    WorkshopSeat,
)
from portal.leases.states import LIVE_LEASES, Approval, EndReason, ExtensionState, LeaseState, RequestState
from portal.teams.models import Role, Team
from portal.teams.selectors import DECIDES, Rights, below

_LIVE = in_sql(state for state in LIVE_LEASES if state != LeaseState.BOOKED)
_BEGUN = f"it.user_id = %s AND it.state IN {_LIVE} ORDER BY it.not_after, it.id LIMIT %s"
_BOOKED = f"it.user_id = %s AND it.state = '{LeaseState.BOOKED}' AND it.part = 0 ORDER BY it.starts_at, it.id LIMIT %s"
_LEASES = Rows(Lease, "team", "user", "flavor", "flavor.device_model", "node", "request")


def waiting_count(team: Team) -> int:
    """Return how many requests of the team wait."""
    ((count,),) = fetch(
        f"SELECT count(*) FROM leases_leaserequest WHERE team_id = %s AND state = '{RequestState.QUEUED}'",  # noqa: S608 (our own states)
        [team.pk],
    )
    return int(count)


def is_booked(request: LeaseRequest) -> bool:
    """Say whether a granted request is a booking that has not begun."""
    return Lease.objects.filter(request=request, state=LeaseState.BOOKED).exists()


MAX_FAULTS: Final = 5  # as often as this a request may fail before it is given up
CLUSTER_BUSY: Final = "cluster_busy"  # a node's word for a cluster that did not start the lease's job in time


def fault_count(request: LeaseRequest) -> int:
    """Return how often what was granted to a request failed; a gang fails once, however many of its parts did.

    A cluster that had no room in time is no fault: the request waits as it does in the queue, however often.
    """
    failed = Lease.objects.filter(request=request, end_reason=EndReason.FAULT, is_extra=False)
    busy = failed.filter(fault__startswith=f"{CLUSTER_BUSY}:").values("generation")
    return failed.exclude(generation__in=busy).values("generation").distinct().count()


def is_anybody_waiting() -> bool:
    """Say whether the queue holds any request."""
    return LeaseRequest.objects.filter(state=RequestState.QUEUED).exists()


def _as_deputy(rights: Rights, team: str, waits: Q) -> Q:
    """Return the filter for what a deputy sees of a team: what waits for approval, and what was decided since."""
    found = Q(pk__in=[])
    for seat in rights.stands_in_for:
        found |= below(seat.teams_with(DECIDES), team) & (waits | Q(decided_at__gte=seat.since))
    return found


def _extended_as_deputy(rights: Rights) -> Q:
    if not rights.stands_in_for:
        return Q(pk__in=[])
    waits = Q(state=ExtensionState.AWAITING_APPROVAL)
    asked = LeaseExtension.objects.filter(_as_deputy(rights, "lease__team__", waits))
    return Q(pk__in=asked.values("lease"))


def visible_series(rights: Rights) -> QuerySet[Reservation]:
    """Return the series of teams this person belongs to (or oversees), the newest first."""
    return Reservation.objects.filter(
        below(rights.teams_with(Role.values), "team__")
        | _as_deputy(rights, "team__", Q(approval=Approval.AWAITING))
    ).select_related("team", "author", "flavor")


def visible_workshops(rights: Rights) -> QuerySet[Workshop]:
    """Return the workshops of one's teams, and those one has a seat in, the newest first."""
    own = Q(pk__in=WorkshopSeat.objects.filter(user=rights.user).values("workshop"))
    rows = Workshop.objects.filter(
        own
        | below(rights.teams_with(Role.values), "team__")
        | _as_deputy(rights, "team__", Q(approval=Approval.AWAITING))
    )
    return rows.select_related("team", "organiser", "flavor__device_model", "decided_by")


def visible_requests(rights: Rights) -> QuerySet[LeaseRequest]:
    """Return the requests of teams this person belongs to (or oversees)."""
    rows = LeaseRequest.objects.filter(
        below(rights.teams_with(Role.values), "team__")
        | _as_deputy(rights, "team__", Q(state=RequestState.AWAITING_APPROVAL))
    )
    return rows.select_related(
        "team", "author", "flavor", "flavor__device_model", "decided_by", "decided_for"
    )


def visible_leases(rights: Rights) -> QuerySet[Lease]:
    """Return the leases of teams this person belongs to (or oversees)."""
    return Lease.objects.filter(
        below(rights.teams_with(Role.values), "team__") | _extended_as_deputy(rights)
    ).select_related("team", "user", "flavor", "flavor__device_model", "node", "request")


def visible_request(rights: Rights, uid: str) -> LeaseRequest:
    """Return a request by its name, or raise NotFound also when it is out of sight."""
    found = visible_requests(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found


def visible_lease(rights: Rights, uid: str, *, is_locked: bool = False) -> Lease:
    """Return a lease by its name, locked if wished, or raise NotFound also when it is out of sight."""
    found = _LEASES.first("it.uid = %s FOR UPDATE OF it" if is_locked else "it.uid = %s", [uid])
    if found is None or not (
        rights.has(found.team, *Role.values)
        or (rights.stands_in_for and visible_leases(rights).filter(pk=found.pk).exists())
    ):
        raise NotFound
    return found


def together(lease: Lease) -> list[Lease]:
    """Return the leases of the same grant: parts of a gang and what was grown, the lease itself too."""
    if lease.request.nodes == 1 and lease.request.most_count == 0:
        return [lease]
    wanted = "it.request_id = %s AND it.generation = %s ORDER BY it.part, it.id"
    return _LEASES.where(wanted, [lease.request_id, lease.generation])


def gang_environment(lease: Lease, leases: Sequence[Lease]) -> dict[str, str]:
    """Return what a part of a gang has to know of the others, as environment; nothing for a lease alone."""
    parts = [one for one in leases if not one.is_extra]
    if lease.is_extra or len(parts) < 2:
        return {}
    return {
        "BERTH_NODES": ",".join(part.node.name for part in parts),
        "BERTH_NODE_COUNT": str(len(parts)),
        "BERTH_NODE_RANK": str(lease.part),
    }


def may_manage_lease(rights: Rights, lease: Lease) -> bool:
    """Say whether this person may extend or release the lease: its holder, a team admin, an operator."""
    return lease.user_id == rights.user.pk or rights.has(lease.team, Role.ADMIN, Role.OPERATOR)


def may_see_access(rights: Rights, lease: Lease) -> bool:
    """Say whether this person may see how to connect: the holder and the team's admins."""
    if rights.is_seen:
        return False
    return lease.user_id == rights.user.pk or rights.has(lease.team, Role.ADMIN)


def queue() -> QuerySet[LeaseRequest]:
    """Return the waiting requests in the order the engine serves them."""
    return LeaseRequest.objects.filter(state=RequestState.QUEUED).order_by("-priority", "queued_at", "id")


def places_by_submission(requests: Iterable[LeaseRequest]) -> dict[int, int]:
    """Return by id the 1-based place of those that wait, by priority and time: one query, none when nobody waits."""
    ids = [request.pk for request in requests if request.state == RequestState.QUEUED]
    if not ids:
        return {}
    rows = fetch(
        "SELECT id, place FROM"  # noqa: S608 (our own states)
        " (SELECT id, row_number() OVER (ORDER BY priority DESC, queued_at, id) AS place"
        f" FROM leases_leaserequest WHERE state = '{RequestState.QUEUED}') AS waiting WHERE id = ANY(%s)",
        [ids],
    )
    return dict(rows)


def live_leases_of(user: User, *, most: int) -> list[Lease]:
    """Return a person's leases that have begun and are not ended yet, the next to end first, at most so many."""
    return _LEASES.where(_BEGUN, [user.pk, most])


def standing_on(node: Node) -> list[Lease]:
    """Return the leases that take something of a node now, bookings aside, the next to end first."""
    states = [state for state in LIVE_LEASES if state != LeaseState.BOOKED]
    return list(Lease.objects.filter(node=node, state__in=states).order_by("not_after", "id"))


def uids_on(node: Node, named: Collection[str]) -> set[str]:
    """Return which of these names are those of leases that are or were on the node; a node may say any name."""
    asked = [uid for uid in named if uid]
    return (
        set(Lease.objects.filter(node=node, uid__in=asked).values_list("uid", flat=True)) if asked else set()
    )


def bookings_of(user: User, *, most: int) -> list[Lease]:
    """Return what a person has booked, the next to begin first, at most so many; a gang once."""
    return _LEASES.where(_BOOKED, [user.pk, most])


def _any_seat(rights: Rights, could: Callable[[Rights], Q]) -> Q:
    """Return the filter for what this person could decide by their own rights or in somebody's place."""
    return reduce(or_, map(could, rights.seats))


def awaiting_approval(rights: Rights) -> QuerySet[LeaseRequest]:
    """Return requests that this person could decide on, oldest first."""
    steps = ApprovalStep.objects.filter(request=OuterRef("pk"))

    def could(seat: Rights) -> Q:
        teams = seat.teams_with(DECIDES)
        # Where somebody of the team has approved and a second one must, those of a team above decide next.
        is_above = below(teams, "team__parent__") | Q(team__parent=None)
        return (
            below(teams, "team__")
            & (is_above | ~Exists(steps.filter(is_above=False)))
            & ~Exists(steps.filter(Q(approver=seat.user) | Q(on_behalf_of=seat.user)))
            & ~Q(author=seat.user)
        )

    return (
        LeaseRequest.objects.filter(_any_seat(rights, could), state=RequestState.AWAITING_APPROVAL)
        .exclude(author=rights.user)
        .exclude(Exists(steps.filter(Q(approver=rights.user) | Q(on_behalf_of=rights.user))))
        .select_related("team", "author", "flavor", "flavor__device_model")
        .order_by("submitted_at")
    )


def awaiting_extensions(rights: Rights) -> QuerySet[LeaseExtension]:
    """Return the extensions of running leases that this person could decide on, oldest first."""

    def could(seat: Rights) -> Q:
        is_own = Q(asked_by=seat.user) | Q(lease__user=seat.user)
        return below(seat.teams_with(DECIDES), "lease__team__") & ~is_own

    return (
        LeaseExtension.objects.filter(
            _any_seat(rights, could),
            state=ExtensionState.AWAITING_APPROVAL,
            lease__state__in=(LeaseState.ACTIVE, LeaseState.INTERRUPTED),
        )
        .exclude(asked_by=rights.user)
        .exclude(lease__user=rights.user)
        .select_related("asked_by", "lease__team", "lease__user", "lease__flavor__device_model")
        .select_related("lease__node", "lease__request")
    )


def awaiting_series(rights: Rights) -> QuerySet[Reservation]:
    """Return the series that this person could decide on, oldest first."""

    def could(seat: Rights) -> Q:
        return below(seat.teams_with(DECIDES), "team__") & ~Q(author=seat.user)

    return (
        Reservation.objects.filter(_any_seat(rights, could), approval=Approval.AWAITING, cancelled_at=None)
        .exclude(author=rights.user)
        .select_related("team", "author", "flavor", "flavor__device_model")
        .order_by("created_at", "id")
    )


def awaiting_workshops(rights: Rights) -> QuerySet[Workshop]:
    """Return the workshops that this person could decide on, the next to begin first."""

    def could(seat: Rights) -> Q:
        return below(seat.teams_with(DECIDES), "team__") & ~Q(organiser=seat.user)

    return (
        Workshop.objects.filter(_any_seat(rights, could), approval=Approval.AWAITING, cancelled_at=None)
        .exclude(organiser=rights.user)
        .select_related("team", "organiser", "flavor", "flavor__device_model")
        .order_by("starts_at", "id")
    )


def decisions_waiting(rights: Rights) -> int:
    """Return how many requests, extensions, series and workshops this person could decide on."""
    found = (
        awaiting_approval(rights),
        awaiting_extensions(rights),
        awaiting_series(rights),
        awaiting_workshops(rights),
    )
    requests, *others = (rows.order_by().values_list("pk") for rows in found)
    return requests.union(*others, all=True).count()  # one query: every page of who decides asks it


def seconds_left(lease: Lease, *, now: datetime) -> int | None:
    """Return the whole seconds a lease still has, or None before it is active and after it ended."""
    if lease.state not in (LeaseState.ACTIVE, LeaseState.INTERRUPTED):
        return None
    return max(0, int((lease.ends_at - now).total_seconds()))
