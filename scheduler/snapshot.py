"""Read one consistent picture of the installation for the engine, and publish it for the forms."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import cast

from portal.common.rows import Rows, fetch
from portal.fleet.models import Layout
from portal.fleet.models import Node as NodeRow
from portal.fleet.selectors import blocked_why, health_blocked_why
from portal.policies.demand import current_demand
from scheduler.engine.model import (
    Booking,
    Claim,
    Device,
    Held,
    Learned,
    Mode,
    Node,
    Outage,
    PersonUsage,
    Profile,
    Running,
    Snapshot,
    TeamQuota,
    Work,
)

MAX_QUEUE = 20_000
# Plain rows by SQL that is written once: a turn reads the whole fleet, and building queries and objects
# cost more than deciding.
PROFILES = (
    "SELECT device_model_id, name, slices, starts, share_milli, memory_mib, max_instances FROM fleet_profile"
    " ORDER BY slices, name"
)
DEVICES = (
    "SELECT d.id, d.node_id, d.index, d.model_id, m.slug, m.grid, m.memory_mib, m.weight_milli, d.modes,"
    " d.max_clients, d.link_domain, d.health, m.bandwidth_gbps, m.compute_class, d.pcie_switch, d.numa_node"
    " FROM fleet_device d JOIN fleet_devicemodel m ON m.id = d.model_id ORDER BY d.node_id, d.index"
)
HELD = (
    "SELECT p.device_id, p.start, p.size, p.mode, p.team_id, p.lease_id,"
    " least(coalesce(l.not_after, upper(p.period)), l.preempt_at), p.share_milli, p.memory_mib, p.profile,"
    " coalesce(f.cpu_milli::bigint * l.count, 0), coalesce(f.host_memory_mib::bigint * l.count, 0),"
    " CASE WHEN lower(p.period) > %s AND coalesce(l.state, 'booked') = 'booked' THEN lower(p.period) END"
    " FROM leases_placement p LEFT JOIN leases_lease l ON l.id = p.lease_id"
    " LEFT JOIN catalog_flavor f ON f.id = l.flavor_id"
    " WHERE p.is_live ORDER BY p.device_id, p.start, p.id"
)
RUNNING = (
    "SELECT l.id, l.request_id, l.team_id, l.user_id, l.node_id, l.starts_at, l.not_after, l.cost_milli,"
    " l.count, r.priority, r.work, l.is_preemptible, l.is_extra, r.attempts, r.duration_s - r.remaining_s,"
    " coalesce(r.predicted_s, 0), l.preempt_at, l.preempted_for_id"
    " FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id"
    " WHERE l.state IN ('preparing', 'active', 'interrupted') ORDER BY l.id"
)
OUTAGES = (
    "SELECT n.node_id, w.starts_at, w.ends_at, w.uid FROM fleet_maintenancewindow w"
    " JOIN fleet_maintenancewindow_nodes n ON n.maintenancewindow_id = w.id"
    " WHERE w.cancelled_at IS NULL AND w.ends_at > %s ORDER BY w.starts_at, w.id, n.node_id"
)
PEOPLE = "SELECT team_id, user_id, used_milli_s FROM quotas_personusage ORDER BY team_id, user_id"
LEARNED = "SELECT version, curves FROM policies_durationmodel ORDER BY version DESC LIMIT 1"
CLAIMS = (
    "SELECT r.id, r.team_id, f.mode, r.count, r.remaining_s, r.priority, r.queued_at, m.slug, f.profile,"
    " f.share_milli, f.memory_mib, f.cpu_milli::bigint * r.count, f.host_memory_mib::bigint * r.count,"
    " f.max_memory_mib, r.nodes, r.author_id, r.work, r.is_preemptible, r.starts_at, r.least_duration_s,"
    " r.most_count, coalesce(r.predicted_s, 0), r.duration_s - r.remaining_s, r.attempts, g.steps"
    " FROM leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"
    " JOIN fleet_devicemodel m ON m.id = f.device_model_id"
    " JOIN teams_team t ON t.id = r.team_id"
    " LEFT JOIN LATERAL (SELECT max(steps) AS steps FROM quotas_prioritygrant WHERE team_id = ANY(t.lineage)"
    " AND revoked_at IS NULL AND starts_at <= %s AND ends_at > %s) g ON TRUE"
    " WHERE r.state = 'queued' ORDER BY r.priority DESC, r.queued_at, r.id LIMIT %s"
)
QUOTAS = (
    "SELECT t.id, t.parent_id, q.ceiling_milli, coalesce(q.used_milli, 0), t.name,"
    " coalesce(q.guaranteed_milli, 0), q.lending_milli, q.cohort_id"
    " FROM teams_team t LEFT JOIN quotas_quota q ON q.team_id = t.id ORDER BY t.id"
)
_NODES, _LAYOUTS = Rows(NodeRow), Rows(Layout)


def take(*, now: datetime) -> Snapshot:
    """Return everything one turn may look at, in one read-only transaction's worth of queries."""
    held, bookings = _held(now)
    return Snapshot(
        taken_at=now,
        nodes=tuple(
            Node(n.pk, n.name, blocked_why(n, now=now), n.cpu_milli, n.memory_mib, n.site, n.rack)
            for n in _NODES.where("TRUE ORDER BY it.name", [])
        ),
        devices=tuple(_devices()),
        held=tuple(held),
        queue=tuple(_claims(now)),
        quotas=tuple(TeamQuota(*row) for row in fetch(QUOTAS)),
        demand=current_demand(),
        running=tuple(Running(*row) for row in fetch(RUNNING)),
        bookings=tuple(bookings),
        outages=tuple(Outage(*row) for row in fetch(OUTAGES, [now])),
        people=tuple(PersonUsage(*row) for row in fetch(PEOPLE)),
        learned=_learned(),
    )


def _learned() -> Learned:
    for version, curves in fetch(LEARNED):
        return Learned(version, tuple((team, group, tuple(curve)) for team, group, curve in curves))
    return Learned()


def _devices() -> Iterable[Device]:
    profiles: dict[int, list[Profile]] = {}
    for model, name, slices, starts, *sizes in fetch(PROFILES):
        profiles.setdefault(model, []).append(Profile(name, slices, tuple(starts), *sizes))
    layouts = {
        row.device_id: tuple((str(n), int(s)) for n, s in row.positions) for row in _LAYOUTS.where("TRUE", [])
    }
    for (
        pk,
        node,
        index,
        model_id,
        model,
        grid,
        memory,
        weight,
        modes,
        clients,
        domain,
        health,
        *more,
    ) in fetch(DEVICES):
        bandwidth, compute_class, switch, numa = more
        yield Device(
            id=pk,
            node_id=node,
            model=model,
            grid=grid,
            memory_mib=memory,
            weight_milli=weight,
            modes=frozenset(modes),
            profiles=tuple(profiles.get(model_id, ())),
            layout=layouts.get(pk),
            max_clients=clients,
            index=index,
            domain=domain,
            blocked=health_blocked_why(health),
            bandwidth_gbps=bandwidth,
            compute_class=compute_class,
            switch=switch,
            numa=numa,
        )


def _held(now: datetime) -> tuple[list[Held], list[Booking]]:
    """Return what is held now and what is booked for later."""
    held, bookings = [], []
    told: set[int] = set()  # a lease takes CPU and memory of its node once, not per placement
    for (
        device,
        start,
        size,
        mode,
        team,
        lease,
        until,
        share,
        memory,
        profile,
        cpu,
        host_memory,
        later,
    ) in fetch(HELD, [now]):
        is_first = lease is not None and lease not in told
        if is_first and (cpu or host_memory):
            told.add(lease)
        one = Held(
            device_id=device,
            start=start,
            size=size,
            mode=cast(Mode, mode),
            team_id=team,
            lease_id=lease,
            until=until,
            share_milli=share,
            memory_mib=memory,
            is_host=lease is None,
            profile=profile,
            cpu_milli=cpu if is_first else 0,
            host_memory_mib=host_memory if is_first else 0,
        )
        if later is None:
            held.append(one)
        else:
            bookings.append(Booking(later, one))
    return held, bookings


def _claims(now: datetime) -> Iterable[Claim]:
    models: dict[str, frozenset[str]] = {}
    for pk, team, mode, count, remaining, priority, queued_at, model, profile, share, memory, *more in fetch(
        CLAIMS, [now, now, MAX_QUEUE]
    ):
        cpu, host_memory, most_memory, nodes, author, work, may_go, starts_at, least, most, *rest = more
        predicted, ran, evictions, steps = rest
        yield Claim(
            id=pk,
            team_id=team,
            mode=cast(Mode, mode),
            count=count,
            duration_s=remaining,
            priority=priority + (steps or 0),
            queued_at=queued_at,
            models=models.setdefault(model, frozenset({model})),
            profile=profile,
            share_milli=share,
            memory_mib=memory,
            cpu_milli=cpu,
            host_memory_mib=host_memory,
            max_memory_mib=most_memory,
            nodes=nodes,
            user_id=author,
            work=cast(Work, work),
            is_preemptible=may_go,
            starts_at=starts_at,
            least_duration_s=least,
            most_count=most,
            predicted_s=predicted,
            ran_s=ran,
            evictions=evictions,
        )
