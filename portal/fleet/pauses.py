"""Pauses of intake: for how long nothing new starts on a device, a node or anywhere. Who asks for them is ``alerts``.

A pause is one row and ends with its time by itself: whoever wants it to last puts its end off while that holds.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q, QuerySet

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, NotFound
from portal.common.live import EVENTS, publish_on_commit
from portal.common.sql import fetch
from portal.fleet.models import Device, IntakePause, Node

PAUSED: Final = "paused"  # what the engine and pages call a device on which nothing new starts
# Told to every page that is open; what is paused they ask for themselves.
CHANGED: Final = "intake.changed"
# For how long a pause holds once it was said, and how much of that is left when it is said again.
HOLDS: Final = timedelta(minutes=15)
PUT_OFF_AT: Final = timedelta(minutes=10)
MOST_REASON: Final = 200
ANYWHERE: Final = "*"
_PAUSED = (
    "SELECT d.id, max(p.until) FROM fleet_intakepause p JOIN fleet_device d"
    " ON p.device_id = d.id OR p.node_id = d.node_id OR (p.device_id IS NULL AND p.node_id IS NULL)"
    " WHERE p.ended_at IS NULL AND p.started_at <= %s AND p.until > %s GROUP BY d.id"
)


def paused_devices(*, now: datetime) -> dict[int, datetime]:
    """Return the ids of devices on which nothing new starts now, and until when: one query for the whole fleet."""
    return dict(fetch(_PAUSED, [now, now]))


def pauses_in_force(*, now: datetime) -> QuerySet[IntakePause]:
    """Return the pauses that hold now, with what they name, the oldest first."""
    rows = IntakePause.objects.filter(ended_at=None, started_at__lte=now, until__gt=now)
    return rows.select_related("node", "device__node")


def paused_by(*, now: datetime) -> dict[str, datetime]:
    """Return the causes of the pauses that hold now, and until when at least."""
    return dict(pauses_in_force(now=now).values_list("cause", "until"))


def pauses_on(node: Node, *, now: datetime) -> list[IntakePause]:
    """Return the pauses that hold now for a node, one of its devices, or the whole fleet."""
    meant = Q(node=node) | Q(device__node=node) | Q(node=None, device=None)
    return list(pauses_in_force(now=now).filter(meant))


def pause_intake(*, cause: str, node: Node | None, device: Device | None, reason: str, now: datetime) -> None:
    """Let nothing new start on a device, a node or (neither) anywhere; what runs goes on. Safe to repeat."""
    made, is_new = IntakePause.objects.get_or_create(
        cause=cause,
        defaults={
            "node": None if device is not None else node, "device": device, "reason": reason[:MOST_REASON],
            "started_at": now, "until": now + HOLDS,
        },
    )  # fmt: skip
    if is_new:
        record(None, "intake.paused", cause, at=now, about=scope_name(made), reason=made.reason)
        publish_on_commit(EVENTS, [{"event": CHANGED}])


def causes_of_pauses() -> list[str]:
    """Return the causes of pauses that nobody has ended, those whose time is over among them."""
    return list(IntakePause.objects.filter(ended_at=None).order_by("pk").values_list("cause", flat=True))


def put_off(causes: Collection[str], *, now: datetime) -> None:
    """Let pauses go on whose cause lasts. Safe to repeat."""
    open_now = IntakePause.objects.filter(cause__in=causes, ended_at=None)
    open_now.filter(until__lte=now + PUT_OFF_AT).update(until=now + HOLDS)


def resume_intake(*, cause: str, actor: User, now: datetime) -> None:
    """End a pause by hand; raises NotFound where there never was one, Conflict where it has ended by itself."""
    found = IntakePause.objects.filter(cause=cause).first()
    if found is None:
        raise NotFound
    if not end_pause(cause=cause, actor=actor, now=now):
        found.refresh_from_db()
        if found.ended_by_id is None:
            raise Conflict


@transaction.atomic
def end_pause(*, cause: str, actor: User | None, now: datetime) -> bool:
    """End one pause that has not ended; says whether this call did. ``actor`` None is Berth itself."""
    row = IntakePause.objects.select_for_update(of=("self",), no_key=True).filter(cause=cause).first()
    if row is None or row.ended_at is not None:
        return False
    row.ended_at, row.ended_by = max(now, row.started_at), actor
    row.save(update_fields=["ended_at", "ended_by"])
    record(actor, "intake.resumed", cause, at=row.ended_at, about=scope_name(row))
    publish_on_commit(EVENTS, [{"event": CHANGED}])
    return True


def scope_name(pause: IntakePause) -> str:
    """Return what a pause is of, as operators call it; ANYWHERE is the whole fleet."""
    if pause.device is not None:
        return f"{pause.device.node.name}/{pause.device.index}"
    return pause.node.name if pause.node is not None else ANYWHERE


def forget_pauses(*, before: datetime) -> int:
    """Forget pauses that ended long ago; returns how many rows went."""
    gone, _models = IntakePause.objects.filter(ended_at__lt=before).delete()
    return gone
