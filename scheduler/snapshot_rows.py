"""The large tables of a snapshot: devices, placements, waiting requests and live leases, kept between turns."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from portal.common.sql import Row, fetch, in_sql
from portal.fleet.selectors import health_blocked_why
from portal.fleet.sizes import SIZE_SQL
from portal.leases.elastic import LEAST_REST_S, growing_rows
from portal.leases.states import LEAVING_LEASES, WANTED_ON_NODE, LeaseState, RequestState
from scheduler.engine.model import Booking, Claim, DeviceInfo, Held, MigProfile, Running
from scheduler.row_cache import RowCache

# Drivers, and so flavors, placements and layouts, have several names for one slice; the engine has one.
_ASKED_SIZE = SIZE_SQL.format(model="f.device_model_id", name="f.profile")
_HELD_SIZE = SIZE_SQL.format(
    model="(SELECT held.model_id FROM fleet_device held WHERE held.id = p.device_id)", name="p.profile"
)
_PINNED_SIZE = SIZE_SQL.format(model="d.model_id", name="at->>0")


class LivePlacement(NamedTuple):
    """What a live placement holds; ``booking`` is set while its lease is only booked."""

    held: Held
    booking: Booking | None


class _Sizes:
    """MIG sizes by what a driver told, built once per distinct text: most devices of a model say the same."""

    def __init__(self) -> None:
        self._names: list[Row] = []
        self._told: dict[str, tuple[MigProfile, ...]] = {}

    def renew(self) -> bool:
        """Say whether a name means another size than it did when this was asked last."""
        names = fetch("SELECT device_model_id, name, size FROM fleet_profile ORDER BY id")
        if names == self._names:
            return False
        self._names, self._told = names, {}
        return True

    def told(self, text: str) -> tuple[MigProfile, ...]:
        """Return the sizes of a device under the names they are asked for by."""
        found = self._told.get(text)
        if found is None:
            rows = sorted(json.loads(text), key=lambda row: (row["slices"], row["size"]))
            found = self._told[text] = tuple(
                MigProfile(
                    row["size"], row["slices"], tuple(row["starts"]), row["share_milli"], row["memory_mib"],
                    row["max_instances"],
                )
                for row in rows
            )  # fmt: skip
        return found


_SIZES = _Sizes()


def _device(row: Row) -> DeviceInfo:
    pk, node, index, profiles, model, grid, memory, weight, modes, clients, domain, health, *more = row
    is_accepted, bandwidth, compute_class, switch, numa, layout = more
    return DeviceInfo(
        id=pk,
        node_id=node,
        model=model,
        grid=grid,
        memory_mib=memory,
        weight_milli=weight,
        modes=frozenset(modes),
        profiles=_SIZES.told(profiles),
        layout=None if layout is None else tuple((str(name), int(start)) for name, start in layout),
        max_clients=clients,
        index=index,
        domain=domain,
        blocked=health_blocked_why(health, is_accepted=is_accepted),
        bandwidth_gbps=bandwidth,
        compute_class=compute_class,
        switch=switch,
        numa=numa,
    )


_DEVICES = RowCache(
    "fleet_device d JOIN fleet_devicemodel m ON m.id = d.model_id LEFT JOIN fleet_layout y ON y.device_id = d.id",
    ("d", "m", "y"),
    "ORDER BY d.node_id, d.index",
    "d.id, d.node_id, d.index, d.profiles::text, m.slug, m.grid, m.memory_mib,"  # noqa: S608 (our own parts)
    " m.weight_milli, d.modes, d.max_clients,"
    " d.link_domain, d.health, d.is_accepted, m.bandwidth_gbps, m.compute_class, d.pcie_switch, d.numa_node,"
    f" (SELECT json_agg(json_build_array({_PINNED_SIZE}, at->1))"
    " FROM jsonb_array_elements(y.positions) AS at)",
    _device,
)


def heed_names() -> None:
    """Read everything anew where a name means another size by now: devices, what is held and what is asked for."""
    if _SIZES.renew():
        forget()


def devices() -> tuple[DeviceInfo, ...]:
    """Return all devices by node and index."""
    return _DEVICES.read()


def _placed(row: Row) -> LivePlacement:
    starts_at, *rest = row
    held = Held(*rest)
    return LivePlacement(held, None if starts_at is None else Booking(starts_at, held))


# A lease takes CPU and memory of its node once: by its first placement.
_FIRST = "(p.id = (SELECT min(o.id) FROM leases_placement o WHERE o.lease_id = p.lease_id AND o.is_live))"
_PLACED = RowCache(
    "leases_placement p LEFT JOIN leases_lease l ON l.id = p.lease_id LEFT JOIN catalog_flavor f ON f.id = l.flavor_id",
    ("p", "l", "f"),
    "WHERE p.is_live ORDER BY p.device_id, p.start, p.id",
    f"CASE WHEN coalesce(l.state, '{LeaseState.BOOKED}') = '{LeaseState.BOOKED}' THEN lower(p.period) END,"
    " p.device_id, p.start, p.size, p.mode, p.team_id, p.lease_id,"
    " least(coalesce(l.not_after, upper(p.period)), l.preempt_at), p.share_milli, p.memory_mib,"
    " p.lease_id IS NULL,"
    f" {_HELD_SIZE},"
    f" CASE WHEN {_FIRST} THEN coalesce(f.cpu_milli::bigint * l.count, 0) ELSE 0 END,"
    f" CASE WHEN {_FIRST} THEN coalesce(f.host_memory_mib::bigint * l.count, 0) ELSE 0 END",
    _placed,
)


def placed() -> tuple[LivePlacement, ...]:
    """Return all live placements by device and start, those that only begin later among them."""
    return _PLACED.read()


_MODELS: dict[str, frozenset[str]] = {}


def _claim(row: Row) -> Claim:
    model, *fields = row
    models = _MODELS.setdefault(model, frozenset({model}))
    return Claim(*(*fields[:7], models, *fields[7:]))


def asked_claim(row: Row) -> Claim:
    """Return the claim of a row of ASKED."""
    *fields, needs_containers = row
    claim = _claim(tuple(fields))
    return replace(claim, needs_containers=True) if needs_containers else claim


ASKED = (
    "m.slug, r.id, r.team_id, f.mode, r.count, r.remaining_s, r.priority, r.queued_at,"
    f" {_ASKED_SIZE}, f.share_milli,"
    " f.memory_mib, f.cpu_milli::bigint * r.count, f.host_memory_mib::bigint * r.count, 0, 0, 0, '', '', r.nodes,"
    " f.max_memory_mib, r.author_id, r.work, r.is_preemptible, r.starts_at, r.least_duration_s, r.most_count,"
    " coalesce(r.predicted_s, 0), r.duration_s - r.remaining_s, r.evictions, r.needs_containers"
)
_CLAIMS = RowCache(
    "leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"
    " JOIN fleet_devicemodel m ON m.id = f.device_model_id",
    ("r", "f", "m"),
    # A seat in a workshop is booked ahead as anything; after that it waits for its person, not for room.
    f"WHERE r.state = '{RequestState.QUEUED}' AND NOT (r.awaits_person AND r.starts_at <= %s)"
    " ORDER BY r.priority DESC, r.queued_at, r.id LIMIT %s",
    ASKED,
    asked_claim,
)


def claims(most: int, now: datetime) -> tuple[Claim, ...]:
    """Return the waiting requests, at most so many, with the priority they were asked with."""
    return _CLAIMS.read([now, most])


_GROWING = (
    "SELECT m.slug, r.id, r.team_id, f.mode, 1, 0, r.priority, r.queued_at,"  # noqa: S608 (our own parts)
    f" {_ASKED_SIZE}, f.share_milli,"
    " f.memory_mib, f.cpu_milli, f.host_memory_mib, 0, 0, 0, '', '', 1, f.max_memory_mib, r.author_id, r.work, true"
    " FROM leases_leaserequest r JOIN catalog_flavor f ON f.id = r.flavor_id"
    " JOIN fleet_devicemodel m ON m.id = f.device_model_id WHERE r.id = ANY(%s) ORDER BY r.id"
)


def growing(now: datetime) -> tuple[Claim, ...]:
    """Return what elastic leases may get on top: claims of one unit, ``most_count`` of them, for the time left."""
    rows = {pk: (units, left_s) for pk, units, left_s in growing_rows(now=now)}
    if not rows:
        return ()
    claims = (_claim(row) for row in fetch(_GROWING, [list(rows)]))
    return tuple(
        replace(
            claim,
            most_count=int(rows[claim.id][0]),
            duration_s=int(rows[claim.id][1]),
            least_duration_s=LEAST_REST_S,
        )
        for claim in claims
    )


_RUNNING = RowCache(
    "leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id",
    ("l", "r"),
    f"WHERE l.state IN {in_sql(WANTED_ON_NODE)}"
    f" OR (l.state IN {in_sql(LEAVING_LEASES)} AND l.preempted_for_id IS NOT NULL) ORDER BY l.id",
    "l.id, l.request_id, l.team_id, l.user_id, l.node_id, l.starts_at, l.not_after, l.cost_milli, l.count,"
    " r.priority, r.work, l.is_preemptible, l.is_extra, r.evictions, r.duration_s - r.remaining_s,"
    " coalesce(r.predicted_s, 0), l.preempt_at, l.preempted_for_id, r.queued_at",
    lambda row: Running(*row),
)


def running() -> tuple[Running, ...]:
    """Return the leases that live, beside what they hold."""
    return _RUNNING.read()


def forget() -> None:
    """Read everything anew next time."""
    kept: tuple[RowCache[Any], ...] = (_DEVICES, _PLACED, _CLAIMS, _RUNNING)
    for one in kept:
        one.forget()
