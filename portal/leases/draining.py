"""A node is emptied by a deadline: leases end there as they do where maintenance begins, and get their end back.

Nothing here moves a lease by itself: a drain is one more thing that ``maintenance.heed_windows`` heeds, so that
holders are told by the same words, the rest of their time goes back into the queue and money stops at the end.
Asking and settling lock nodes, which come last in the lock order: leases are looked at once that is committed.
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.sql import fetch, in_sql
from portal.fleet.draining import ask_drain, check_deadline
from portal.fleet.models import Node
from portal.fleet.services import uncordon
from portal.leases.maintenance import DRAIN_AHEAD, AffectedLease, affected, follow
from portal.leases.states import LIVE_ON_NODE
from portal.notifications.services import notify
from portal.teams.selectors import operators

# What still stands on a node; a booking holds nothing there yet.
_DRAINING = (
    "SELECT n.id, n.name, n.drained_at, n.cordon_reason, EXISTS (SELECT 1 FROM leases_lease l"  # noqa: S608 (ours)
    f" WHERE l.node_id = n.id AND l.state IN {in_sql(LIVE_ON_NODE)})"
    " FROM fleet_node n WHERE n.drain_by IS NOT NULL ORDER BY n.id FOR UPDATE OF n SKIP LOCKED"
)


def drain_node(*, node: Node, by: datetime, reason: str, actor: User, now: datetime) -> Node:
    """Cordon a node and have it empty by a time; raises Invalid. Returns it as it is then. Safe to repeat.

    Holders of leases that would run longer are told now; leases that are being made after the deadline end at
    once, bookings are planned anew that begin before it or soon after. Call outside a transaction of its own.
    """
    begin_drain(node=node, by=by, reason=reason, actor=actor, now=now)
    follow(now=now)
    return Node.objects.get(pk=node.pk)


def begin_drain(*, node: Node, by: datetime, reason: str, actor: User, now: datetime) -> Node:
    """Cordon a node and want it empty by a time, or raise Invalid; returns it as it is then. Safe to repeat.

    Locks nodes alone. What it means for leases is left to ``follow``, which the caller runs after the
    commit and every tick does too.
    """
    ask_drain(node=node, by=by, reason=reason, actor=actor, now=now)
    settle_drains(now=now)
    return Node.objects.get(pk=node.pk)


def bring_back(*, node: Node, actor: User, now: datetime) -> Node:
    """Let a node take work again; leases that a drain cut short and that still run get their end back.

    Safe to repeat, drained or not. Call outside a transaction of its own.
    """
    begin_work(node=node, actor=actor, now=now)
    follow(now=now)
    return Node.objects.get(pk=node.pk)


def begin_work(*, node: Node, actor: User, now: datetime) -> Node:
    """Let a node take work again; returns it as it is then. Leases ``follow``: see ``begin_drain``."""
    uncordon(node=node, actor=actor, now=now)
    return Node.objects.get(pk=node.pk)


@transaction.atomic
def settle_drains(*, now: datetime) -> int:
    """Note which nodes have become empty, and tell operators; returns how many did. Safe to repeat.

    A lease that was granted in the instant of the drain takes the note back until it is gone as well.
    """
    rows = fetch(_DRAINING, [])
    emptied = [row for row in rows if row[2] is None and not row[4]]
    refilled = [row[0] for row in rows if row[2] is not None and row[4]]
    if refilled:
        Node.objects.filter(pk__in=refilled).update(drained_at=None)
    if not emptied:
        return 0
    Node.objects.filter(pk__in=[row[0] for row in emptied]).update(drained_at=now)
    people = operators()
    for pk, name, _drained_at, reason, _holds in emptied:
        record(None, "node.drained", name, at=now)
        notify(people, "node.drained", target=f"node-{pk}", at=now, is_news=True, node=name, reason=reason)
    return len(emptied)


def reached_by_drain(node: Node, by: datetime, *, now: datetime) -> list[AffectedLease]:
    """Return the leases and bookings that a drain would reach, as things stand; raises Invalid, changes nothing.

    Leases are those that run longer than its deadline, bookings those that are planned anew at once.
    """
    check_deadline(by, now=now)
    until = max(by, now)
    found = affected([node.pk], now, until + DRAIN_AHEAD, now=now)
    reached = []
    for one in found:
        # What maintenance has shortened already counts from the end it would have without.
        lost = (one.lease.wanted_until or one.lease.not_after) - until
        if one.is_booking:
            reached.append(one)
        elif lost.total_seconds() > 0:
            reached.append(AffectedLease(one.lease, int(lost.total_seconds()), is_booking=False))
    return reached
