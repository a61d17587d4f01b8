"""What the fleet is: inventory as agents report it, and what operators decide about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.utils.translation import gettext as _

from nodeagent.protocol.boards import UnknownBoardError, board
from nodeagent.protocol.messages import DeviceFact, PartitionFact
from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Invalid
from portal.common.live import NODES, publish_on_commit
from portal.common.sql import execute, fetch
from portal.fleet.health import settle
from portal.fleet.models import Device, DeviceModel, Health, Mode, Node
from portal.fleet.pools import TAKEN
from portal.fleet.sizes import is_near, learn_sizes, told_by

MOST_LEASE = 40


def model_slug(name: str) -> str:
    """Return the short name under which a device model is known."""
    return "-".join("".join(c.lower() if c.isalnum() else " " for c in name).split())[:40]


def learn_model(fact: DeviceFact) -> DeviceModel:
    """Return the model of a reported device, made on first sight. Safe to repeat.

    Bandwidth and class come from the table of boards, once; a model that is not in it stays unknown.
    """
    bandwidth_gbps, compute_class = _speed(fact.model)
    model, _created = DeviceModel.objects.get_or_create(
        slug=model_slug(fact.model),
        defaults={
            "name": fact.model,
            "vendor": fact.vendor,
            "memory_mib": fact.memory_mib,
            "sm_count": fact.sm_count,
            "grid": fact.grid,
        },
    )
    if (model.bandwidth_gbps, model.compute_class) == (None, None) != (bandwidth_gbps, compute_class):
        model.bandwidth_gbps, model.compute_class = bandwidth_gbps, compute_class
        model.save(update_fields=["bandwidth_gbps", "compute_class"])
    return model


def _speed(name: str) -> tuple[int | None, int | None]:
    """Return memory bandwidth in GB/s and class of a board by name; None is unknown."""
    try:
        known = board(name)
    except UnknownBoardError:
        return None, None
    return known.bandwidth_gbps, known.compute_class


def _told(fact: DeviceFact) -> dict[str, Any]:
    """Return what an inventory says of a device that may be otherwise next time.

    A mode that was refused is offered as soon as what it lacked was installed, and the other way round.
    """
    return {
        "index": fact.index,
        "offered": _modes_of(fact),
        "pci_bus_id": fact.pci_bus_id[:32],
        "link_domain": fact.link_domain[:40],
        "pcie_switch": fact.pcie_switch[:40],
        "numa_node": fact.numa_node,
        "max_clients": fact.max_clients,
        "refusals": {mode: why[:300] for mode, why in fact.refusals.items() if mode in Mode.values},
        "said": {"model": fact.model, "memory_mib": fact.memory_mib},
    }


def _modes_of(fact: DeviceFact) -> list[str]:
    return [mode for mode in fact.modes if mode in Mode.values]


def _chosen(device: Device, offered: list[str]) -> list[str]:
    """Return the modes of a device whose agent offers these now: an operator's narrower choice stays one.

    Where nobody chose, they follow the agent; of a choice, what is not offered any more is left out.
    """
    if set(device.modes) == set(device.offered):
        return offered
    return [mode for mode in device.modes if mode in offered]


def _is_same(accepted: dict[str, Any], said: dict[str, Any]) -> bool:
    """Say whether a device is what was accepted; another driver may count its memory a little differently."""
    if accepted.get("model") != said["model"]:
        return False
    return is_near(said["memory_mib"], accepted["memory_mib"])


class _Learned:
    """Models and sizes of one inventory, each looked up once: the boards of a node are mostly alike."""

    def __init__(self) -> None:
        self._models: dict[str, DeviceModel] = {}
        self._sizes: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def model(self, fact: DeviceFact) -> DeviceModel:
        if fact.model not in self._models:
            self._models[fact.model] = learn_model(fact)
        return self._models[fact.model]

    def sizes(self, fact: DeviceFact) -> list[dict[str, Any]]:
        key = (fact.model, fact.grid, fact.memory_mib, fact.sm_count, fact.profiles)
        if key not in self._sizes:
            self._sizes[key] = learn_sizes(self.model(fact), told_by(fact))
        return self._sizes[key]


def learn_devices(
    node: Node, facts: Sequence[DeviceFact], *, now: datetime, accepts: bool | None = None
) -> list[str]:
    """Bring the node's devices in line with its inventory; returns the uuids refused as another node's.

    A device not reported any more is marked missing, never deleted: leases and bills refer to it. ``accepts`` takes
    what is new or changed into service at once (None: as BERTH_ACCEPT_NODES says); otherwise it waits for an
    operator. A device that lists no MIG sizes now keeps those it listed before. Call inside a transaction.
    """
    refused = []
    accepts = settings.ACCEPT_NODES == "auto" if accepts is None else accepts
    learned = _Learned()
    for fact in facts:
        owner = Device.objects.filter(uuid=fact.uuid).exclude(node=node).exists()
        if owner:
            refused.append(fact.uuid)
            continue
        told = _told(fact) | {"last_seen_at": now}
        said = told["said"]
        device, created = Device.objects.get_or_create(
            uuid=fact.uuid,
            defaults={"node": node, "model": learned.model(fact), "modes": _modes_of(fact), **told}
            | ({"accepted": said, "is_accepted": True} if accepts else {}),
        )
        if not created:
            if accepts or device.accepted == {}:
                device.accepted = said  # devices from before this was asked count as accepted as they come
            device.is_accepted = device.accepted is not None and _is_same(device.accepted, said)
            device.modes = _chosen(device, _modes_of(fact))
            for name, value in told.items():
                setattr(device, name, value)
        if not device.is_accepted:
            device.said = said | {"profiles": told_by(fact)}
        elif fact.profiles and device.model_id == learned.model(fact).pk:
            device.profiles = learned.sizes(fact)
        # A unit of a pool that others hold is listed all the same; it comes back by a report (fleet/pools.py).
        is_back = device.health == Health.MISSING and device.health_reason != TAKEN
        if is_back:
            device.health, device.health_reason = Health.OK, ""
        device.save(
            update_fields=[*told, "modes", "health", "health_reason", "accepted", "is_accepted", "profiles"]
        )
        if is_back:
            settle({device.pk})  # what was critical before it went away still is
    seen = [fact.uuid for fact in facts]
    node.devices.exclude(uuid__in=seen).exclude(health=Health.MISSING).update(
        health=Health.MISSING, health_reason="not reported by the node any more"
    )
    return refused


def forget_acceptance(node: Node) -> None:
    """Let all devices of a node wait for an operator; leases on them go on. Call with them locked."""
    node.devices.update(accepted=None, is_accepted=False)


def see_partitions(node: Node, facts: Sequence[PartitionFact], *, now: datetime) -> None:
    """Store what the agent saw on the node's devices, replacing what it saw before. Call in a transaction."""
    rows = fetch(
        "SELECT d.uuid, p.start, p.uuid, p.lease_uid, p.id FROM fleet_partition p"
        " JOIN fleet_device d ON d.id = p.device_id WHERE d.node_id = %s",
        [node.pk],
    )
    known = {(device, start, uuid): (lease, pk) for device, start, uuid, lease, pk in rows}
    wanted = {(f.device, f.start, f.uuid): f for f in facts}
    stale = [pk for key, (lease, pk) in known.items() if key not in wanted or wanted[key].lease != lease]
    if stale:
        execute("DELETE FROM fleet_partition WHERE id = ANY(%s)", [stale])
    fresh = [f for key, f in wanted.items() if key not in known or known[key][0] != f.lease]
    if fresh:
        _store_partitions(node, fresh, now=now)


def _store_partitions(node: Node, facts: Sequence[PartitionFact], *, now: datetime) -> None:
    """Store partitions not seen before; what is said of another node's device is left out."""
    execute(
        "INSERT INTO fleet_partition (device_id, uuid, profile, start, size, lease_uid, seen_at)"
        " SELECT d.id, f.uuid, f.profile, f.start, f.size, f.lease, %s"
        " FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[], %s::int[], %s::text[])"
        "  AS f(device, uuid, profile, start, size, lease)"
        " JOIN fleet_device d ON d.uuid = f.device AND d.node_id = %s",
        [
            now,
            *(list(column) for column in zip(*(_columns(fact) for fact in facts), strict=True)),
            node.pk,
        ],
    )


def _columns(fact: PartitionFact) -> tuple[str, str, str, int, int, str]:
    """Return a partition as it is stored; a lease with a longer id than any of ours is none of ours."""
    lease = fact.lease if len(fact.lease) <= MOST_LEASE else ""
    return fact.device, fact.uuid, fact.profile, fact.start, fact.size, lease


def raise_revision(node_ids: Sequence[int]) -> None:
    """Say that the desired state of these nodes changed: last step of the transaction, rows in id order."""
    ids = sorted(set(node_ids))
    if not ids:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH held AS (SELECT id FROM fleet_node WHERE id = ANY(%s) ORDER BY id FOR UPDATE)"
            " UPDATE fleet_node n SET desired_revision = desired_revision + 1"
            " FROM held WHERE n.id = held.id RETURNING n.name",
            [ids],
        )
        publish_on_commit(NODES, [name for (name,) in cursor.fetchall()])


def clean_reason(reason: str) -> str:
    """Return why a node takes no new work, as it is stored, or raise Invalid where nothing is said."""
    if not reason.strip():
        raise Invalid(fields={"reason": _("Say why, so that waiting people can be told.")})
    return reason.strip()[:200]


@transaction.atomic
def cordon(*, node: Node, actor: User | None, reason: str, now: datetime) -> None:
    """Place nothing new on the node; running leases go on. ``actor`` None is Berth itself. Safe to repeat."""
    said = clean_reason(reason)
    Node.objects.filter(pk=node.pk).update(is_cordoned=True, cordon_reason=said)
    record(actor, "node.cordoned", node.name, at=now, reason=reason)


@transaction.atomic
def uncordon(*, node: Node, actor: User, now: datetime) -> None:
    """Let the node take new work again; a drain ends with it. Safe to repeat."""
    Node.objects.filter(pk=node.pk).update(
        is_cordoned=False, cordon_reason="", drain_by=None, drain_asked_at=None, drained_at=None
    )
    record(actor, "node.uncordoned", node.name, at=now)
