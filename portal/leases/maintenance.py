"""What maintenance windows do to leases: whom they reach, when leases end before them, and what becomes of bookings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from portal.accounts.models import User
from portal.common.outbox import RUN_CYCLE, nudge_on_commit
from portal.common.retry import with_retries
from portal.common.sql import fetch, in_sql
from portal.fleet import maintenance as windows
from portal.fleet.draining import deadlines
from portal.fleet.models import MaintenanceWindow, Node
from portal.fleet.services import raise_revision
from portal.leases.bookings import replan_on
from portal.leases.hold_periods import hold_until
from portal.leases.lifecycle import end_leases
from portal.leases.models import Lease
from portal.leases.next_blocks import NextBlock, next_blocks
from portal.leases.states import RUNNING_LEASES, WANTED_ON_NODE, EndReason, LeaseState
from portal.leases.transitions import announce, lock_leases
from portal.notifications.services import notify

log = logging.getLogger(__name__)

MOST = 2000
# How long after a drain's deadline, or before their start once it has passed, bookings wait for the node to be back.
DRAIN_AHEAD = timedelta(hours=2)
RUNS = (LeaseState.ACTIVE, LeaseState.INTERRUPTED)
# Leases that run into a window or into the deadline of a drain, were shortened by one that may be gone, or are being
# made when one begins. Those that end where it begins are right, however many: they must not keep the others from
# being looked at.
_TOUCHED = f"""
SELECT l.id FROM leases_lease l JOIN fleet_node d ON d.id = l.node_id
 WHERE (l.state IN {in_sql(RUNNING_LEASES)} AND l.wanted_until IS NOT NULL
        AND d.drain_by IS DISTINCT FROM l.not_after AND NOT EXISTS (
        SELECT 1 FROM fleet_maintenancewindow w JOIN fleet_maintenancewindow_nodes n
            ON n.maintenancewindow_id = w.id
         WHERE n.node_id = l.node_id AND w.cancelled_at IS NULL AND w.ends_at > %s
           AND w.starts_at = l.not_after))
    OR (l.state IN {in_sql(WANTED_ON_NODE)} AND (
        CASE WHEN l.state = '{LeaseState.PREPARING}' THEN d.drain_by <= %s ELSE d.drain_by < l.not_after END OR EXISTS (
        SELECT 1 FROM fleet_maintenancewindow w JOIN fleet_maintenancewindow_nodes n
            ON n.maintenancewindow_id = w.id
         WHERE n.node_id = l.node_id AND w.cancelled_at IS NULL AND w.ends_at > %s
           AND CASE WHEN l.state = '{LeaseState.PREPARING}' THEN w.starts_at <= %s ELSE w.starts_at < l.not_after END)))
 ORDER BY l.id LIMIT %s
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class AffectedLease:
    """A lease or booking that a window reaches: how many seconds it loses there, and whether it has begun."""

    lease: Lease
    loses_s: int
    is_booking: bool


def affected(
    node_ids: Sequence[int], starts_at: datetime, ends_at: datetime, *, now: datetime
) -> list[AffectedLease]:
    """Return the leases and bookings that a window on these nodes would reach, as things stand; changes nothing."""
    rows = (
        Lease.objects.filter(Q(not_after__gt=starts_at) | Q(wanted_until__gt=starts_at))
        .filter(node_id__in=list(node_ids))
        .filter(state__in=(LeaseState.BOOKED, LeaseState.PREPARING, *RUNS), starts_at__lt=ends_at)
        .select_related("team", "user", "flavor", "node", "request")
        .order_by("node__name", "starts_at", "id")
    )
    return [_affected(lease, max(starts_at, now)) for lease in rows]


def _affected(lease: Lease, starts_at: datetime) -> AffectedLease:
    until = lease.wanted_until or lease.not_after
    begins = max(starts_at, lease.starts_at)
    is_booking = lease.state == LeaseState.BOOKED
    lost = until - (lease.starts_at if is_booking else begins)
    return AffectedLease(lease, max(0, int(lost.total_seconds())), is_booking)


def plan_window(
    *, nodes: Sequence[Node], starts_at: datetime, ends_at: datetime, reason: str, actor: User, now: datetime
) -> MaintenanceWindow:
    """Store a window and tell those it reaches at once; raises Invalid. Call outside a transaction of its own."""
    made = windows.make_window(
        nodes=nodes, starts_at=starts_at, ends_at=ends_at, reason=reason, actor=actor, now=now
    )
    follow(now=now)
    return made


def change_window(
    *, window: MaintenanceWindow, starts_at: datetime, ends_at: datetime, actor: User, now: datetime
) -> MaintenanceWindow:
    """Give a window another time and every lease the end that follows; raises Invalid or Conflict."""
    changed = windows.change_window(window=window, starts_at=starts_at, ends_at=ends_at, actor=actor, now=now)
    follow(now=now)
    return changed


def cancel_window(*, window: MaintenanceWindow, actor: User, now: datetime) -> MaintenanceWindow:
    """Take a window back and give leases the end that they had; raises Conflict once it is over. Safe to repeat."""
    cancelled = windows.cancel_window(window=window, actor=actor, now=now)
    follow(now=now)
    return cancelled


def follow(*, now: datetime) -> None:
    """Let leases, bookings and those who wait follow what was just committed; where that fails, the next tick does it.

    The row is the work: whoever asked was answered truly all the same. Call outside a transaction of its own.
    """
    for step in (lambda: heed_windows(now=now), lambda: nudge_on_commit(RUN_CYCLE)):
        try:
            step()
        except Exception:  # neither a bug nor a database that is gone by now calls off what is stored
            log.exception("leases do not follow yet; the next tick tries again")


def heed_windows(*, now: datetime) -> int:
    """Plan bookings inside windows anew and let leases end where maintenance begins, no later and no earlier.

    A node that is being drained counts as one long window from its deadline on. Of its bookings those are planned
    anew that begin before it or in the next ``DRAIN_AHEAD``, later ones when they have come that near: by then the
    node may be back, and a booking that finds no other place is refused for good.
    Returns how many leases and bookings changed. Safe to repeat: what is already right is left alone.
    """
    changed = 0
    for window in windows.windows_to_come(now=now):
        nodes = [node.pk for node in window.nodes.all()]
        changed += with_retries(
            lambda w=window, n=nodes: replan_on(n, w.starts_at, w.ends_at, why="maintenance", at=now)  # type: ignore[misc]
        )
    for node_id, by in deadlines():
        until = max(by, now) + DRAIN_AHEAD
        changed += with_retries(
            lambda n=node_id, u=until: replan_on([n], now, u, why="maintenance", at=now)  # type: ignore[misc]
        )
    return changed + with_retries(lambda: _fit_leases(now))


@transaction.atomic
def _fit_leases(now: datetime) -> int:
    ids = [pk for (pk,) in fetch(_TOUCHED, [now, now, now, now, MOST])]
    if not ids:
        return 0
    blocks = next_blocks(ids, now=now)
    wrong = [ls.pk for ls in Lease.objects.filter(pk__in=ids) if _is_wrong(ls, blocks.get(ls.pk), now)]
    leases = [ls for ls in lock_leases(wrong) if _is_wrong(ls, blocks.get(ls.pk), now)]
    begun = [lease for lease in leases if lease.state == LeaseState.PREPARING]
    end_leases(begun, reason=EndReason.MAINTENANCE, at=now)
    running = [lease for lease in leases if lease.state in RUNS]
    for lease in running:
        _fit(lease, blocks.get(lease.pk), now)
    raise_revision([lease.node_id for lease in running])
    announce(running, at=now)
    return len(leases)


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """When a lease ends by what is known now, when it would end without maintenance, and what makes it shorter."""

    until: datetime
    wanted_until: datetime | None
    cut_by: str


def _end_of(lease: Lease, block: NextBlock | None) -> LeaseEnd:
    """Return how a running lease ends. One that was granted shorter agreed to that end, and to no earlier one."""
    assert lease.activated_at is not None
    wish = lease.wanted_until or lease.not_after
    until = wish
    if block is not None:  # never before what has happened to it already: its events run forward
        until = max(block.at, lease.activated_at + timedelta(seconds=1), lease.moved_at or block.at)
    if block is None or until >= wish:
        cut_by = lease.cut_by
        if lease.wanted_until:  # as it was granted again: what made it shorter then, before maintenance did
            cut_by = block.why if block is not None and block.at == wish else ""
        return LeaseEnd(wish, None, cut_by)
    return LeaseEnd(until, None if block.why == "booking" else wish, block.why)


def _is_wrong(lease: Lease, block: NextBlock | None, now: datetime) -> bool:
    """Say whether a lease must end at another time than it would, or must not begin any more."""
    if lease.state == LeaseState.PREPARING:
        return block is not None and block.why == "maintenance" and block.at <= now
    if lease.state not in RUNS:
        return False
    end = _end_of(lease, block)
    return (end.until, end.wanted_until) != (lease.not_after, lease.wanted_until)


def _fit(lease: Lease, block: NextBlock | None, now: datetime) -> None:
    """Give a locked lease the end that follows from what is planned, and tell its holder."""
    end, was = _end_of(lease, block), lease.not_after
    lease.not_after, lease.wanted_until, lease.cut_by = end.until, end.wanted_until, end.cut_by
    lease.warned_at = None
    reached = hold_until([lease.pk], end.until)
    if reached is not None and reached < end.until and end.wanted_until is None:
        lease.not_after, lease.cut_by = max(reached, now, lease.moved_at or now), "booking"
    lease.save(update_fields=["not_after", "wanted_until", "cut_by", "warned_at"])
    holder = User.objects.get(pk=lease.user_id)
    kind = "lease.cut_by_maintenance" if lease.not_after < was else "lease.longer_again"
    facts: dict[str, Any] = {"not_after": lease.not_after.isoformat(), "reason": block.note if block else ""}
    notify([holder], kind, target=lease.uid, at=now, is_news=True, **facts)
