"""A node is emptied by a deadline: what operators ask. What it does to leases, and the end: ``leases.draining``.

A drain is a maintenance without an end. From the first word on nothing new is placed (the node is cordoned); the
deadline stands before its leases as the start of a window does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Invalid
from portal.common.sql import fetch
from portal.fleet.models import Node
from portal.fleet.services import clean_reason

FURTHEST = timedelta(days=90)
DrainState = Literal["", "draining", "overdue", "drained"]


def drain_state(node: Node, *, now: datetime) -> DrainState:
    """Return how far the drain of a node is: "" without one, overdue when its time has passed and it is not empty."""
    if node.drain_by is None:
        return ""
    if node.drained_at is not None:
        return "drained"
    return "overdue" if node.drain_by < now else "draining"


@transaction.atomic
def ask_drain(*, node: Node, by: datetime, reason: str, actor: User, now: datetime) -> Node:
    """Cordon the node and want it empty by a time, or raise Invalid; a time that has passed becomes now.

    Safe to repeat; another time or reason takes the place of the earlier one.
    """
    said = clean_reason(reason)
    check_deadline(by, now=now)
    locked = Node.objects.select_for_update().get(pk=node.pk)
    was = locked.drain_by
    is_now = by <= now and was is not None and was <= now
    until = was if is_now and was is not None else max(by, now)
    if (was, locked.cordon_reason) == (until, said):
        return locked
    locked.is_cordoned, locked.cordon_reason = True, said
    locked.drain_by, locked.drain_asked_at = until, locked.drain_asked_at if was else now
    locked.save(update_fields=["is_cordoned", "cordon_reason", "drain_by", "drain_asked_at"])
    record(actor, "node.drain_asked", locked.name, at=now, by=until.isoformat(), reason=said)
    return locked


def check_deadline(by: datetime, *, now: datetime) -> None:
    """Raise Invalid for a time that is too far ahead; one that has passed is good and means now."""
    if by > now + FURTHEST:
        raise Invalid(fields={"by": _("Give a time in the next %(n)d days.") % {"n": FURTHEST.days}})


def deadlines() -> list[tuple[int, datetime]]:
    """Return id and deadline of every node that is being drained."""
    rows = fetch("SELECT id, drain_by FROM fleet_node WHERE drain_by IS NOT NULL ORDER BY id", [])
    return [(pk, by) for pk, by in rows]
