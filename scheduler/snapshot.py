"""Read one consistent picture of the installation for the engine, and publish it for the forms."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import cast

from django.db.models import F

from portal.fleet.models import Device as DeviceRow
from portal.fleet.models import Layout
from portal.fleet.models import Node as NodeRow
from portal.fleet.models import Profile as ProfileRow
from portal.fleet.selectors import blocked_why, health_blocked_why
from portal.leases.models import Placement
from portal.leases.selectors import queue
from portal.quotas.models import Quota
from portal.teams.models import Team
from scheduler.engine.model import Claim, Device, Held, Mode, Node, Profile, Snapshot, TeamQuota

MAX_QUEUE = 20_000
# Plain rows: a turn reads the whole fleet, and building objects of it cost more than deciding.
PROFILE_FIELDS = (
    "device_model_id",
    "name",
    "slices",
    "starts",
    "share_milli",
    "memory_mib",
    "max_instances",
)
DEVICE_FIELDS = (
    "id",
    "node_id",
    "index",
    "model_id",
    "model__slug",
    "model__grid",
    "model__memory_mib",
    "model__weight_milli",
    "modes",
    "max_clients",
    "link_domain",
    "health",
)


def take(*, now: datetime) -> Snapshot:
    """Return everything one turn may look at, in one read-only transaction's worth of queries."""
    return Snapshot(
        taken_at=now,
        nodes=tuple(Node(n.pk, n.name, blocked_why(n, now=now)) for n in NodeRow.objects.all()),
        devices=tuple(_devices()),
        held=tuple(_held()),
        queue=tuple(_claims()),
        quotas=tuple(_quotas()),
    )


def _devices() -> Iterable[Device]:
    profiles: dict[int, list[Profile]] = {}
    for model, name, slices, starts, *sizes in ProfileRow.objects.values_list(*PROFILE_FIELDS):
        profiles.setdefault(model, []).append(Profile(name, slices, tuple(starts), *sizes))
    layouts = {
        row.device_id: tuple((str(n), int(s)) for n, s in row.positions) for row in Layout.objects.all()
    }
    for row in DeviceRow.objects.order_by("node_id", "index").values(*DEVICE_FIELDS):
        yield Device(
            id=row["id"],
            node_id=row["node_id"],
            model=row["model__slug"],
            grid=row["model__grid"],
            memory_mib=row["model__memory_mib"],
            weight_milli=row["model__weight_milli"],
            modes=frozenset(row["modes"]),
            profiles=tuple(profiles.get(row["model_id"], ())),
            layout=layouts.get(row["id"]),
            max_clients=row["max_clients"],
            index=row["index"],
            domain=row["link_domain"],
            blocked=health_blocked_why(row["health"]),
        )


def _held() -> Iterable[Held]:
    rows = Placement.objects.filter(is_live=True).values_list(
        "device_id",
        "start",
        "size",
        "mode",
        "team_id",
        "lease_id",
        "lease__not_after",
        "period",
        "share_milli",
        "memory_mib",
        "profile",
    )
    for device, start, size, mode, team, lease, not_after, period, share, memory, profile in rows:
        yield Held(
            device_id=device,
            start=start,
            size=size,
            mode=cast(Mode, mode),
            team_id=team,
            lease_id=lease,
            until=not_after or period.upper,
            share_milli=share,
            memory_mib=memory,
            is_host=lease is None,
            profile=profile,
        )


def _claims() -> Iterable[Claim]:
    rows = queue().values_list(
        "id",
        "team_id",
        "flavor__mode",
        "count",
        "remaining_s",
        "priority",
        "queued_at",
        "flavor__device_model__slug",
        "flavor__profile",
        "flavor__share_milli",
        "flavor__memory_mib",
    )[:MAX_QUEUE]
    models: dict[str, frozenset[str]] = {}
    for pk, team, mode, count, remaining, priority, queued_at, model, profile, share, memory in rows:
        yield Claim(
            id=pk,
            team_id=team,
            mode=cast(Mode, mode),
            count=count,
            duration_s=remaining,
            priority=priority,
            queued_at=cast(datetime, queued_at),  # a constraint: whoever waits has it
            models=models.setdefault(model, frozenset({model})),
            profile=profile,
            share_milli=share,
            memory_mib=memory,
        )


def _quotas() -> Iterable[TeamQuota]:
    quotas = {row.team_id: row for row in Quota.objects.all()}
    for team_id, parent_id, name in Team.objects.order_by("id").values_list("id", "parent_id", F("name")):
        row = quotas.get(team_id)
        yield TeamQuota(
            team_id=team_id,
            parent_id=parent_id,
            ceiling_milli=row.ceiling_milli if row else None,
            used_milli=row.used_milli if row else 0,
            name=name,
        )
