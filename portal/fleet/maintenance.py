"""Maintenance windows: times in which nodes are not available. What they do to leases is in ``leases.maintenance``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Invalid, NotFound
from portal.common.sql import fetch
from portal.fleet.models import MaintenanceWindow, Node

LONGEST = timedelta(days=90)
FURTHEST = timedelta(days=366)
MOST_NODES = 1000


def nodes_in_maintenance(*, now: datetime) -> frozenset[int]:
    """Return the ids of nodes on which a window is on now: one query for the whole fleet."""
    rows = fetch(
        "SELECT n.node_id FROM fleet_maintenancewindow w"
        " JOIN fleet_maintenancewindow_nodes n ON n.maintenancewindow_id = w.id"
        " WHERE w.cancelled_at IS NULL AND w.ends_at > %s AND w.starts_at <= %s",
        [now, now],
    )
    return frozenset(node_id for (node_id,) in rows)


def windows_to_come(*, now: datetime) -> QuerySet[MaintenanceWindow]:
    """Return the windows that are on or to come, the next first, with their nodes at hand."""
    return (
        MaintenanceWindow.objects.filter(cancelled_at=None, ends_at__gt=now)
        .select_related("made_by")
        .prefetch_related("nodes")
    )


def window_named(uid: str) -> MaintenanceWindow:
    """Return a window by its name with its nodes at hand, or raise NotFound."""
    found = MaintenanceWindow.objects.select_related("made_by").prefetch_related("nodes").filter(uid=uid)
    window = found.first()
    if window is None:
        raise NotFound
    return window


def nodes_named(names: Collection[str]) -> list[Node]:
    """Return the nodes by name, or raise Invalid naming those that do not exist."""
    wanted = sorted(set(names))
    if not wanted:
        raise Invalid(fields={"nodes": _("Choose at least one node.")})
    if len(wanted) > MOST_NODES:
        raise Invalid(fields={"nodes": _("At most %(n)d nodes in one window.") % {"n": MOST_NODES}})
    found = list(Node.objects.filter(name__in=wanted).order_by("id"))
    missing = sorted(set(wanted) - {node.name for node in found})
    if missing:
        raise Invalid(
            fields={"nodes": _("There is no node called %(names)s.") % {"names": ", ".join(missing)[:200]}}
        )
    return found


def check_window(starts_at: datetime, ends_at: datetime, reason: str, *, now: datetime) -> None:
    """Raise Invalid naming every field of a window that cannot be used."""
    fields: dict[str, Any] = {}
    if not reason.strip():
        fields["reason"] = _("Say why, so that the people who are affected can be told.")
    elif len(reason) > 200:
        fields["reason"] = _("At most 200 characters.")
    fields |= _check_times(starts_at, ends_at, now)
    if fields:
        raise Invalid(fields=fields)


def _check_times(starts_at: datetime, ends_at: datetime, now: datetime) -> dict[str, str]:
    if ends_at <= starts_at:
        return {"ends_at": _("The end has to be after the start.")}
    if ends_at <= now:
        return {"ends_at": _("The end has to be in the future.")}
    if ends_at - starts_at > LONGEST:
        return {"ends_at": _("A window lasts at most %(n)d days.") % {"n": LONGEST.days}}
    if starts_at > now + FURTHEST:
        return {"starts_at": _("A window starts within a year.")}
    return {}


@transaction.atomic
def make_window(
    *, nodes: Sequence[Node], starts_at: datetime, ends_at: datetime, reason: str, actor: User, now: datetime
) -> MaintenanceWindow:
    """Store a window, or raise Invalid. A start that has passed becomes now: nobody is sent away in the past."""
    check_window(starts_at, ends_at, reason, now=now)
    window = MaintenanceWindow.objects.create(
        starts_at=max(starts_at, now),
        ends_at=ends_at,
        reason=reason.strip(),
        made_by=actor,
        created_at=now,
    )
    window.nodes.set(nodes)
    names = [node.name for node in nodes]
    record(actor, "maintenance.planned", window.uid, at=now, nodes=names, reason=window.reason)
    return window


@transaction.atomic
def change_window(
    *, window: MaintenanceWindow, starts_at: datetime, ends_at: datetime, actor: User, now: datetime
) -> MaintenanceWindow:
    """Give a window that is not over another time, or raise Invalid or Conflict. One that is on keeps its start."""
    locked = _open(window, now)
    begins = locked.starts_at if locked.starts_at <= now else max(starts_at, now)
    check_window(begins, ends_at, locked.reason, now=now)
    was = [locked.starts_at.isoformat(), locked.ends_at.isoformat()]
    locked.starts_at, locked.ends_at = begins, ends_at
    locked.save(update_fields=["starts_at", "ends_at"])
    record(
        actor,
        "maintenance.changed",
        locked.uid,
        at=now,
        was=was,
        now=[begins.isoformat(), ends_at.isoformat()],
    )
    return locked


@transaction.atomic
def cancel_window(*, window: MaintenanceWindow, actor: User, now: datetime) -> MaintenanceWindow:
    """Take a window back, also while it is on: its nodes take work again. Safe to repeat; Conflict once over."""
    if window.cancelled_at is not None:
        return window
    locked = _open(window, now)
    locked.cancelled_at = now
    locked.save(update_fields=["cancelled_at"])
    record(actor, "maintenance.cancelled", locked.uid, at=now)
    return locked


def _open(window: MaintenanceWindow, now: datetime) -> MaintenanceWindow:
    locked = MaintenanceWindow.objects.select_for_update().get(pk=window.pk)
    if locked.cancelled_at is not None:
        raise Conflict(_("This window was cancelled."))
    if locked.ends_at <= now:
        raise Conflict(_("This window is over."))
    return locked
