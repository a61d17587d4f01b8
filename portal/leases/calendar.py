"""The calendar: what is held on every device in a time to come, as far as this person may know it.

Own teams' leases and bookings have names; strangers' are just "busy". Maintenance is for everybody to see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.common.errors import Invalid
from portal.common.sql import fetch, in_sql
from portal.fleet.models import Device
from portal.leases.forecasting import kept_for_waiting
from portal.leases.states import WANTED_LEASES, LeaseState
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights, below
from scheduler.engine.blocks import Block

Kind = Literal["lease", "booking", "promise", "maintenance"]
LONGEST = timedelta(days=92)
MOST_ENTRIES = 5000
# What outlasts its end is shown up to now: nobody knows when it will be clean.
_HELD = f"""
SELECT p.device_id, n.name, d.uuid, d.index, p.start, p.size, p.share_milli, p.mode, lower(p.period),
       CASE WHEN l.state IN {in_sql(WANTED_LEASES)} THEN l.not_after
            ELSE lower(p.period) END,
       l.state, l.uid, r.uid, r.name, l.team_id, t.slug, t.name, l.user_id, u.display_name, u.username, f.slug, f.name
  FROM leases_placement p JOIN leases_lease l ON l.id = p.lease_id
  JOIN leases_leaserequest r ON r.id = l.request_id JOIN teams_team t ON t.id = l.team_id
  JOIN accounts_user u ON u.id = l.user_id JOIN catalog_flavor f ON f.id = l.flavor_id
  JOIN fleet_device d ON d.id = p.device_id JOIN fleet_node n ON n.id = d.node_id
 WHERE p.is_live AND p.device_id = ANY(%s) AND lower(p.period) < %s AND (upper(p.period) > %s OR %s > %s)
 ORDER BY lower(p.period), p.id LIMIT %s
"""  # noqa: S608 (our own states)
# Who waits and is promised a place, by request id.
_WAITING = """
SELECT r.id, r.uid, r.name, r.team_id, t.slug, t.name, r.author_id, u.display_name, u.username, f.slug, f.name
  FROM leases_leaserequest r JOIN teams_team t ON t.id = r.team_id JOIN accounts_user u ON u.id = r.author_id
  JOIN catalog_flavor f ON f.id = r.flavor_id WHERE r.id = ANY(%s)
"""
_WINDOWS = """
SELECT n.name, w.starts_at, w.ends_at, w.uid, w.reason FROM fleet_maintenancewindow w
  JOIN fleet_maintenancewindow_nodes m ON m.maintenancewindow_id = w.id JOIN fleet_node n ON n.id = m.node_id
 WHERE w.cancelled_at IS NULL AND w.starts_at < %s AND w.ends_at > %s AND n.id = ANY(%s)
 ORDER BY w.starts_at, w.id, n.name
"""


@dataclass(frozen=True, slots=True)
class CalendarEntry:
    """One thing on the calendar. Names are empty where this person may not know them (``is_known`` False).

    A maintenance window has no device: it is for the whole node. ``start`` and ``size`` are memory slices of
    the device's grid; a share has ``size`` 0 and its part in ``share_milli``. ``team`` is a slug.
    """

    kind: Kind
    node: str
    starts_at: datetime
    ends_at: datetime
    device: str = ""
    device_id: int = 0
    device_index: int | None = None
    start: int = 0
    size: int = 0
    share_milli: int = 0
    mode: str = ""
    state: str = ""
    is_known: bool = False
    is_own: bool = False
    lease: str = ""
    request: str = ""
    name: str = ""
    team: str = ""
    team_name: str = ""
    holder: str = ""
    flavor: str = ""
    window: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class CalendarFilter:
    """Which part of the calendar is asked for; ``model`` and ``team`` are slugs, empty names mean all."""

    since: datetime
    until: datetime
    node: str = ""
    model: str = ""
    team: str = ""


def check_wanted(wanted: CalendarFilter) -> None:
    """Raise Invalid where the time asked for makes no sense or is too long to show."""
    if wanted.until <= wanted.since:
        raise Invalid(fields={"to": _("The end has to be after the start.")})
    if wanted.until - wanted.since > LONGEST:
        raise Invalid(fields={"to": _("Ask for at most %(n)d days at once.") % {"n": LONGEST.days}})


def devices_of(wanted: CalendarFilter) -> QuerySet[Device]:
    """Return the devices that the calendar shows, by node and index, with node and model at hand."""
    rows = Device.objects.select_related("node", "model").order_by("node__name", "index")
    if wanted.node:
        rows = rows.filter(node__name=wanted.node)
    if wanted.model:
        rows = rows.filter(model__slug=wanted.model)
    return rows


def entries(
    rights: Rights, wanted: CalendarFilter, devices: Sequence[Device], *, now: datetime
) -> list[CalendarEntry]:
    """Return what is held and planned on these devices in the time asked for, in the order it begins.

    Four queries, and what the last published picture says of places kept for those who wait. Raises Invalid where
    there is more than a page can show. With a team only what is held for it and what it may know of, and maintenance.
    """
    check_wanted(wanted)
    values = [[d.pk for d in devices], wanted.until, wanted.since, now, wanted.since, MOST_ENTRIES + 1]
    rows = fetch(_HELD, values)
    if len(rows) > MOST_ENTRIES:
        raise Invalid(fields={"to": _("There is too much to show. Ask for a shorter time or one node.")})
    known = _known_teams(rights)
    held = [_entry(row, rights, known, now) for row in rows] + _promised(wanted, devices, rights, known)
    shown = [e for e in held if e.ends_at > wanted.since and (not wanted.team or e.team == wanted.team)]
    nodes = sorted({d.node_id for d in devices})
    windows = [
        CalendarEntry("maintenance", node, starts_at, ends_at, window=uid, note=reason, is_known=True)
        for node, starts_at, ends_at, uid, reason in fetch(_WINDOWS, [wanted.until, wanted.since, nodes])
    ]
    return sorted([*shown, *windows], key=lambda e: (e.starts_at, e.node, e.device_index or 0, e.start))


def _promised(
    wanted: CalendarFilter, devices: Sequence[Device], rights: Rights, known: frozenset[int]
) -> list[CalendarEntry]:
    """Return the places that the engine keeps for waiting requests, as the last published picture has them.

    A start there is refused, so they belong on the calendar; they move while requests come and leases end.
    """
    by_id = {device.pk: device for device in devices}
    blocks = [
        block
        for block in kept_for_waiting()
        if block.held.device_id in by_id
        and not block.held.is_host
        and block.starts_at < wanted.until
        and block.held.until > wanted.since
    ]
    waiting = {row[0]: row[1:] for row in fetch(_WAITING, [[b.claim_id for b in blocks]])} if blocks else {}
    return [
        _promise(block, by_id[block.held.device_id], waiting[block.claim_id], rights, known)
        for block in blocks
        if block.claim_id in waiting
    ]


def _promise(
    block: Block, device: Device, row: tuple[Any, ...], rights: Rights, known: frozenset[int]
) -> CalendarEntry:
    request, name, team_id, team, team_name, user_id, display, username, flavor, flavor_name = row
    held, is_known = block.held, team_id in known
    return CalendarEntry(
        kind="promise",
        node=device.node.name,
        starts_at=block.starts_at,
        ends_at=held.until,
        device=device.uuid,
        device_id=device.pk,
        device_index=device.index,
        start=held.start,
        size=held.size,
        share_milli=held.share_milli,
        mode=held.mode,
        is_known=is_known,
        is_own=user_id == rights.user.pk,
        request=request if is_known else "",
        name=(name or flavor_name or flavor) if is_known else "",
        team=team if is_known else "",
        team_name=team_name if is_known else "",
        holder=(display or username) if is_known else "",
        flavor=flavor if is_known else "",
    )


def _known_teams(rights: Rights) -> frozenset[int]:
    """Return the ids of teams whose leases this person may see by name."""
    if not rights.held:
        return frozenset()
    return frozenset(Team.objects.filter(below(rights.teams_with(Role.values))).values_list("pk", flat=True))


def _entry(row: tuple, rights: Rights, known: frozenset[int], now: datetime) -> CalendarEntry:  # type: ignore[type-arg]
    device_id, node, uuid, index, start, size, share, mode, starts_at, ends_at, state, *names = row
    lease, request, name, team_id, team, team_name, user_id, display, username, flavor, flavor_name = names
    kind: Kind = "booking" if state == LeaseState.BOOKED else "lease"
    is_known = team_id in known
    return CalendarEntry(
        kind=kind,
        node=node,
        starts_at=starts_at,
        ends_at=max(ends_at, now) if kind == "lease" else ends_at,
        device=uuid,
        device_id=device_id,
        device_index=index,
        start=start,
        size=size,
        share_milli=share,
        mode=mode,
        state=state if is_known else "",
        is_known=is_known,
        is_own=user_id == rights.user.pk,
        lease=lease if is_known else "",
        request=request if is_known else "",
        name=(name or flavor_name or flavor) if is_known else "",
        team=team if is_known else "",
        team_name=team_name if is_known else "",
        holder=(display or username) if is_known else "",
        flavor=flavor if is_known else "",
    )
