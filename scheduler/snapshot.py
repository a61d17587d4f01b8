"""Read one consistent picture of the installation for the engine, and publish it for the forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from portal.agents.features import runs_containers
from portal.common.sql import fetch
from portal.fleet.models import Node
from portal.fleet.pauses import PAUSED, paused_devices
from portal.fleet.selectors import blocked_why
from portal.leases.states import EndReason, RequestState
from portal.policies.demand import current_demand
from scheduler import snapshot_rows
from scheduler.engine.model import (
    Claim,
    DecayedUsage,
    DeviceInfo,
    Learned,
    NodeInfo,
    Outage,
    Running,
    Snapshot,
    TeamQuota,
)

MAX_QUEUE = 20_000
OUTAGES = (
    "SELECT n.node_id, w.starts_at, w.ends_at, w.uid FROM fleet_maintenancewindow w"
    " JOIN fleet_maintenancewindow_nodes n ON n.maintenancewindow_id = w.id"
    " WHERE w.cancelled_at IS NULL AND w.ends_at > %s ORDER BY w.starts_at, w.id, n.node_id"
)
PEOPLE = "SELECT team_id, user_id, used_milli_s FROM quotas_personusage ORDER BY team_id, user_id"
NEWEST = "SELECT id FROM policies_durationmodel ORDER BY version DESC LIMIT 1"
LEARNED = "SELECT version, curves FROM policies_durationmodel WHERE id = %s"
_LEARNED: dict[int, Learned] = {}  # by the id of the newest model
STEPS = (
    "SELECT t.id, max(g.steps) FROM quotas_prioritygrant g JOIN teams_team t ON g.team_id = ANY(t.lineage)"
    " WHERE g.revoked_at IS NULL AND g.starts_at <= %s AND g.ends_at > %s GROUP BY t.id"
)
QUOTAS = (
    "SELECT t.id, t.parent_id, q.ceiling_milli, coalesce(q.used_milli, 0), t.name,"
    " coalesce(q.guaranteed_milli, 0), q.lending_milli, q.cohort_id"
    " FROM teams_team t LEFT JOIN quotas_quota q ON q.team_id = t.id ORDER BY t.id"
)
# Leases that were told to go for a request that still waits, until a while after they are clean; once the request
# has started, what comes later is no debt any more.
OWED = (
    "SELECT DISTINCT l.preempted_for_id FROM leases_lease l JOIN leases_leaserequest r"  # noqa: S608 (our own states)
    f" ON r.id = l.preempted_for_id AND r.state = '{RequestState.QUEUED}'"
    " WHERE l.preempted_for_id IS NOT NULL AND (l.clean_at IS NULL OR l.clean_at > %s)"
    " AND NOT EXISTS (SELECT 1 FROM leases_lease o WHERE o.request_id = r.id AND o.starts_at >= l.preempt_at)"
)
OWED_FOR = timedelta(minutes=5)
YIELDS = (
    "SELECT r.id, array_agg(DISTINCT l.preempted_for_id) FROM leases_leaserequest r"  # noqa: S608 (our own states)
    f" JOIN leases_lease l ON l.request_id = r.id WHERE r.state = '{RequestState.QUEUED}' AND r.evictions > 0"
    f" AND l.preempted_for_id IS NOT NULL AND l.end_reason = '{EndReason.PREEMPTED}' GROUP BY r.id"
)


def take(*, now: datetime) -> Snapshot:
    """Return everything one turn may look at, in one read-only transaction's worth of queries."""
    snapshot_rows.heed_names()
    placed = snapshot_rows.placed()
    steps: dict[int, int] = dict(fetch(STEPS, [now, now]))
    outages = tuple(Outage(*row) for row in fetch(OUTAGES, [now]))
    away = {outage.node_id for outage in outages if outage.starts_at <= now}
    return Snapshot(
        taken_at=now,
        nodes=tuple(_node(n, blocked_why(n, now=now, away=away)) for n in Node.objects.order_by("name")),
        devices=_devices(now),
        held=tuple(p.held for p in placed if p.booking is None or p.booking.starts_at <= now),
        queue=_claims(now, steps),
        quotas=tuple(TeamQuota(*row) for row in fetch(QUOTAS)),
        demand=current_demand(),
        running=_running(steps),
        bookings=tuple(p.booking for p in placed if p.booking is not None and p.booking.starts_at > now),
        outages=outages,
        people=tuple(DecayedUsage(*row) for row in fetch(PEOPLE)),
        growing=snapshot_rows.growing(now),
        learned=_learned(),
    )


def _devices(now: datetime) -> tuple[DeviceInfo, ...]:
    """Return all devices; those that are sound, but on which nothing new starts for now, say so."""
    rows, paused = snapshot_rows.devices(), paused_devices(now=now)
    if not paused:
        return rows
    return tuple(
        replace(d, blocked=PAUSED, paused_until=paused[d.id]) if d.id in paused and not d.blocked else d
        for d in rows
    )


def _node(n: Node, blocked: str) -> NodeInfo:
    return NodeInfo(
        n.pk, n.name, blocked, n.cpu_milli, n.memory_mib, n.site, n.rack, n.wake_s, runs_containers(n)
    )


def _learned() -> Learned:
    """Return what was learned of lengths; each model is read once per process."""
    newest = next((pk for (pk,) in fetch(NEWEST)), 0)
    if newest not in _LEARNED:
        found = _read_learned(newest) if newest else Learned()
        _LEARNED.clear()
        _LEARNED[newest] = found
    return _LEARNED[newest]


def _read_learned(pk: int) -> Learned:
    for version, text in fetch(LEARNED, [pk]):
        found = json.loads(text)  # a plain cursor hands JSON out as text
        if isinstance(
            found, dict
        ):  # older models held something else, and the next one comes within the hour
            lengths = tuple((team, group, tuple(chances)) for team, group, chances in found["lengths"])
            return Learned(version, lengths, tuple(found["errors"]))
    return Learned()


def _claims(now: datetime, steps: Mapping[int, int]) -> tuple[Claim, ...]:
    """Return what waits, with the priority that grants of its teams give it now, and who made or makes room."""
    claims = snapshot_rows.claims(MAX_QUEUE, now)
    owed = {pk for (pk,) in fetch(OWED, [now - OWED_FOR])}
    yields: dict[int, frozenset[int]] = {pk: frozenset(for_whom) for pk, for_whom in fetch(YIELDS)}
    if not steps and not owed and not yields:
        return claims
    touched = owed | yields.keys()
    return tuple(
        replace(
            claim,
            priority=claim.priority + steps.get(claim.team_id, 0),
            is_owed=claim.id in owed,
            yields_to=yields.get(claim.id, frozenset()),
        )
        if claim.team_id in steps or claim.id in touched
        else claim
        for claim in claims
    )


def _running(steps: Mapping[int, int]) -> tuple[Running, ...]:
    """Return what lives; a grant to its team raises a lease as it raises what waits."""
    running = snapshot_rows.running()
    if not steps:
        return running
    return tuple(
        replace(one, priority=one.priority + steps[one.team_id]) if one.team_id in steps else one
        for one in running
    )
