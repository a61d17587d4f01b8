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
from scheduler.engine.model import Claim, Device, Held, Mode, Node, Profile, Snapshot, TeamQuota

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
    "SELECT p.device_id, p.start, p.size, p.mode, p.team_id, p.lease_id, coalesce(l.not_after, upper(p.period)),"
    " p.share_milli, p.memory_mib, p.profile,"
    " coalesce(f.cpu_milli::bigint * l.count, 0), coalesce(f.host_memory_mib::bigint * l.count, 0)"
    " FROM leases_placement p LEFT JOIN leases_lease l ON l.id = p.lease_id"
    " LEFT JOIN catalog_flavor f ON f.id = l.flavor_id"
    " WHERE p.is_live ORDER BY p.device_id, p.start, p.id"
)
CLAIMS = (
    "SELECT r.id, r.team_id, f.mode, r.count, r.remaining_s, r.priority, r.queued_at, m.slug, f.profile,"
    " f.share_milli, f.memory_mib, f.cpu_milli::bigint * r.count, f.host_memory_mib::bigint * r.count,"
    " f.max_memory_mib"
    " FROM leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"
    " JOIN fleet_devicemodel m ON m.id = f.device_model_id"
    " WHERE r.state = 'queued' ORDER BY r.priority DESC, r.queued_at, r.id LIMIT %s"
)
QUOTAS = (
    "SELECT t.id, t.parent_id, q.ceiling_milli, coalesce(q.used_milli, 0), t.name"
    " FROM teams_team t LEFT JOIN quotas_quota q ON q.team_id = t.id ORDER BY t.id"
)
_NODES, _LAYOUTS = Rows(NodeRow), Rows(Layout)


def take(*, now: datetime) -> Snapshot:
    """Return everything one turn may look at, in one read-only transaction's worth of queries."""
    return Snapshot(
        taken_at=now,
        nodes=tuple(
            Node(n.pk, n.name, blocked_why(n, now=now), n.cpu_milli, n.memory_mib, n.site, n.rack)
            for n in _NODES.where("TRUE ORDER BY it.name", [])
        ),
        devices=tuple(_devices()),
        held=tuple(_held()),
        queue=tuple(_claims()),
        quotas=tuple(_quotas()),
        demand=current_demand(),
    )


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


def _held() -> Iterable[Held]:
    told: set[int] = set()  # a lease takes CPU and memory of its node once, not per placement
    for device, start, size, mode, team, lease, until, share, memory, profile, cpu, host_memory in fetch(
        HELD
    ):
        is_first = lease is not None and lease not in told
        if is_first and (cpu or host_memory):
            told.add(lease)
        yield Held(
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


def _claims() -> Iterable[Claim]:
    models: dict[str, frozenset[str]] = {}
    for pk, team, mode, count, remaining, priority, queued_at, model, profile, share, memory, *more in fetch(
        CLAIMS, [MAX_QUEUE]
    ):
        yield Claim(
            id=pk,
            team_id=team,
            mode=cast(Mode, mode),
            count=count,
            duration_s=remaining,
            priority=priority,
            queued_at=queued_at,
            models=models.setdefault(model, frozenset({model})),
            profile=profile,
            share_milli=share,
            memory_mib=memory,
            cpu_milli=more[0],
            host_memory_mib=more[1],
            max_memory_mib=more[2],
        )


def _quotas() -> Iterable[TeamQuota]:
    for team_id, parent_id, ceiling, used, name in fetch(QUOTAS):
        yield TeamQuota(
            team_id=team_id, parent_id=parent_id, ceiling_milli=ceiling, used_milli=used, name=name
        )
