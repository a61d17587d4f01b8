"""Who is told when a device is not well: the holders of its live leases, and operators where it leaves work."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.accounts.models import User
from portal.common.retry import with_retries
from portal.fleet.health import CRITICAL, RESTING, quarantine
from portal.fleet.models import Device, HealthEvent
from portal.leases.models import Lease, Placement
from portal.leases.states import LeaseState
from portal.notifications.services import notify
from portal.teams.selectors import operators

CONCERNED = (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
# What asks nobody to do anything is no news for holders, nor is a program's own fault: whoever ran it knows.
QUIET_ACTIONS = ("", "watch")
INFO = "info"


def tell_of_health(events: Iterable[HealthEvent], *, now: datetime) -> None:
    """Tell holders once per event and lease, operators once per critical event. Call in a transaction.

    Events are those that ``see_health`` or ``quarantine`` returned. Safe to repeat. A critical one is told anew, for
    it was milder before or has another reason; of others only those hear who have not yet.
    """
    for event in events:
        is_quiet = event.severity == INFO or event.action in QUIET_ACTIONS
        if event.severity != CRITICAL and is_quiet:
            continue
        facts, is_critical = _facts(event), event.severity == CRITICAL
        for lease in [] if event.code == RESTING else _concerned(event):  # what stands on it is well
            about = target_of(lease, event)
            notify([lease.user], "lease.health", target=about, at=now, is_news=is_critical, **facts)
        if is_critical:
            told = {**facts, "detail": event.detail}
            notify(operators(), "fleet.health", target=f"hev-{event.pk}", at=now, is_news=True, **told)


def take_out_of_work(*, device: Device, actor: User | None, reason: str, now: datetime) -> HealthEvent:
    """Put one device in quarantine and tell whom it concerns; raises as ``quarantine`` does."""
    return with_retries(lambda: _take_out(device, actor, reason, now))


@transaction.atomic
def _take_out(device: Device, actor: User | None, reason: str, now: datetime) -> HealthEvent:
    event = quarantine(device=device, actor=actor, reason=reason, now=now)
    tell_of_health([event], now=now)
    return event


def target_of(lease: Lease, event: HealthEvent) -> str:
    """Return what a holder's news is about: the lease, and which event of its devices."""
    return f"{lease.uid}#{event.pk}"


def _facts(event: HealthEvent) -> dict[str, Any]:
    """Return what anybody may know; the agent's or operator's own words may name other teams' work."""
    return {
        "node": event.node.name,
        "index": event.device.index if event.device else None,
        "code": event.code,
        "action": event.action,
        "severity": event.severity,
    }


def _concerned(event: HealthEvent) -> list[Lease]:
    """Return the live leases with a place on the event's device, or on its slices; none for a node as a whole."""
    if event.device_id is None:
        return []
    places = Placement.objects.filter(device_id=event.device_id, is_live=True, lease__state__in=CONCERNED)
    held = places.values_list("lease_id", "start", "size")
    ids = {
        pk
        for pk, start, size in held
        # Without slices named all are hit, and a share (size 0) lies everywhere on its device.
        if event.starts is None or not size or any(start <= hit < start + size for hit in event.starts)
    }
    return list(Lease.objects.filter(pk__in=ids).select_related("user").order_by("id"))
