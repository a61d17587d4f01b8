"""Who may have a terminal or an app, and who still may. Synchronous; read afresh each time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.sql import fetch
from portal.gateway.tickets import WATCH_APP, TakenTicket
from portal.leases.states import LeaseState
from portal.telemetry import viewers
from portal.telemetry.viewers import Viewer

SIGNED_OUT, LEASE_OVER, NOT_ALLOWED = "signed_out", "lease_over", "not_allowed"
_LEASES = (
    "SELECT l.id, l.state, l.generation, l.user_id, t.lineage, l.uid, n.id, n.name, l.team_id"
    " FROM leases_lease l JOIN teams_team t ON t.id = l.team_id JOIN fleet_node n ON n.id = l.node_id"
    " WHERE l.id = ANY(%s)"
)
_SHARES = "SELECT lease_id, user_id FROM gateway_terminalshare WHERE lease_id = ANY(%s)"
_NODES = "SELECT id, epoch, public_key FROM fleet_node WHERE id = ANY(%s)"


@dataclass(frozen=True, slots=True)
class LeaseSeat:
    """A person in a lease: by what they showed, in which generation of which lease, on which node."""

    viewer: Viewer
    lease_id: int
    generation: int
    uid: str
    node_id: int
    node: str
    team_id: int
    is_watching: bool = False


@dataclass(frozen=True, slots=True)
class SeatRefusal:
    """Why somebody has no place in a lease, or none any more: a stable code."""

    code: str


def seat_of(ticket: TakenTicket, *, now: datetime) -> LeaseSeat | SeatRefusal:
    """Return where a ticket leads now, or why it leads nowhere."""
    asked = Viewer(ticket.user_id, "", "", session_key=ticket.session_key, token_id=ticket.token_id)
    viewer = viewers.review([asked], now=now).get(asked.key)
    if viewer is None or viewer.user_id != ticket.user_id:
        return SeatRefusal(SIGNED_OUT)
    rows = fetch(_LEASES, [[ticket.lease_id]])
    if not rows:
        return SeatRefusal(NOT_ALLOWED)
    _pk, _state, _generation, _user, _lineage, uid, node_id, node, team_id = rows[0]
    seat = LeaseSeat(
        viewer, ticket.lease_id, ticket.generation, uid, node_id, node, team_id, ticket.app == WATCH_APP
    )
    return refusals([seat], now=now).get(seat) or seat


def refusals(seats: Collection[LeaseSeat], *, now: datetime) -> dict[LeaseSeat, SeatRefusal]:
    """Return those who may not stay, with the reason: at most six queries for all."""
    alive = viewers.review({seat.viewer for seat in seats}, now=now)
    leases = {row[0]: row[1:5] for row in fetch(_LEASES, [list({seat.lease_id for seat in seats})])}
    watched = {seat.lease_id for seat in seats if seat.is_watching}
    shared = {tuple(row) for row in fetch(_SHARES, [list(watched)])} if watched else set()
    found = {}
    for seat in seats:
        code = _why_not(seat, alive.get(seat.viewer.key), leases.get(seat.lease_id), shared)
        if code:
            found[seat] = SeatRefusal(code)
    return found


def _why_not(
    seat: LeaseSeat,
    viewer: Viewer | None,
    lease: tuple[object, ...] | None,
    shared: Collection[tuple[object, ...]],
) -> str:
    if viewer is None or viewer.user_id != seat.viewer.user_id:
        return SIGNED_OUT
    if lease is None:
        return NOT_ALLOWED
    state, generation, holder, lineage = lease
    if viewer.held.isdisjoint(lineage):  # type: ignore[arg-type]
        return NOT_ALLOWED
    if seat.is_watching:
        may_stay = {(seat.lease_id, viewer.user_id), (seat.lease_id, None)} & set(shared)
        if not may_stay:
            return NOT_ALLOWED
    elif holder != viewer.user_id:
        return NOT_ALLOWED
    return "" if state == LeaseState.ACTIVE and generation == seat.generation else LEASE_OVER


def identities(node_ids: Collection[int]) -> dict[int, tuple[int, bytes]]:
    """Return the epoch and key that each node has now: an agent of an earlier enrolment is nobody."""
    return {pk: (epoch, bytes(key or b"")) for pk, epoch, key in fetch(_NODES, [list(node_ids)])}


def note(seat: LeaseSeat, action: str, *, now: datetime, **facts: object) -> None:
    """Write to the audit log that a terminal or an app was opened or closed; never what went through it."""
    actor = User(pk=seat.viewer.user_id)
    record(actor, action, seat.uid, at=now, team_id=seat.team_id, node=seat.node, **facts)
