"""A node is emptied by a deadline: leases end there as they do where maintenance begins, and get their end back.

Nothing here moves a lease by itself: a drain is one more thing that ``maintenance.heed_windows`` heeds, so that
holders are told by the same words, the rest of their time goes back into the queue and money stops at the end.
"""

from __future__ import annotations

from datetime import datetime

from portal.accounts.models import User
from portal.common.outbox import RUN_CYCLE, nudge_on_commit
from portal.fleet.draining import ask_drain, settle_drains
from portal.fleet.models import Node
from portal.fleet.services import uncordon
from portal.leases.maintenance import DRAIN_AHEAD, Affected, affected, heed_windows


def drain_node(*, node: Node, by: datetime, reason: str, actor: User, now: datetime) -> Node:
    """Cordon a node and have it empty by a time; raises Invalid. Returns it as it is then. Safe to repeat.

    Holders of leases that would run longer are told now; leases that are being made after the deadline end at
    once, bookings are planned anew. Call outside a transaction of its own.
    """
    ask_drain(node=node, by=by, reason=reason, actor=actor, now=now)
    heed_windows(now=now)
    settle_drains(now=now)
    nudge_on_commit(RUN_CYCLE)
    return Node.objects.get(pk=node.pk)


def bring_back(*, node: Node, actor: User, now: datetime) -> Node:
    """Let a node take work again; leases that a drain cut short and that still run get their end back.

    Safe to repeat, drained or not. Call outside a transaction of its own.
    """
    uncordon(node=node, actor=actor, now=now)
    heed_windows(now=now)
    nudge_on_commit(RUN_CYCLE)
    return Node.objects.get(pk=node.pk)


def reached_by_drain(node: Node, by: datetime, *, now: datetime) -> list[Affected]:
    """Return the leases and bookings that a drain would reach, as things stand; changes nothing.

    Leases are those that run longer than its deadline, bookings those that are planned anew at once.
    """
    until = max(by, now)
    found = affected([node.pk], now, until + DRAIN_AHEAD, now=now)
    reached = [one for one in found if one.is_booking or _end(one) > until]
    return [one if one.is_booking else _from(one, until) for one in reached]


def _end(one: Affected) -> datetime:
    return one.lease.wanted_until or one.lease.not_after


def _from(one: Affected, until: datetime) -> Affected:
    return Affected(one.lease, max(0, int((_end(one) - until).total_seconds())), is_booking=False)
