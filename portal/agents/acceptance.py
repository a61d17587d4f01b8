"""An operator's word before new or changed devices serve people, and before leases nobody knows here end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict
from portal.common.live import NODES, publish_on_commit
from portal.common.retry import with_retries
from portal.fleet.models import Device, DeviceModel, Node
from portal.fleet.services import model_slug
from portal.fleet.sizes import learn_sizes
from portal.leases.models import Placement
from portal.notifications.services import notify
from portal.teams.selectors import operators


@dataclass(frozen=True, slots=True)
class NewDevice:
    """A device that waits: what its node says it is, and what was accepted before (None: it is new)."""

    uuid: str
    index: int
    model: str
    memory_mib: int | None
    was_model: str | None
    was_memory_mib: int | None


@dataclass(frozen=True, slots=True)
class AwaitingAcceptance:
    """What of a node waits for an operator; ``seen`` names this very list, for who accepts it."""

    devices: tuple[NewDevice, ...]
    unknown_leases: tuple[str, ...]
    is_ahead: bool
    seen: str

    def __bool__(self) -> bool:
        return bool(self.devices) or self.is_ahead


def waiting_of(node: Node) -> AwaitingAcceptance:
    """Return what of a node waits for an operator, in one query."""
    rows = node.devices.filter(is_accepted=False).order_by("index", "uuid")
    devices = tuple(_new_device(row) for row in rows)
    unknown = tuple(node.unknown_leases)
    listed = [[one.uuid, one.model, one.memory_mib] for one in devices]
    text = json.dumps([listed, unknown, node.ahead_at is not None])
    return AwaitingAcceptance(
        devices, unknown, node.ahead_at is not None, hashlib.sha256(text.encode()).hexdigest()[:16]
    )


def _new_device(row: Device) -> NewDevice:
    said, before = _facts(row.said), _facts(row.accepted)
    return NewDevice(row.uuid, row.index, said[0] or row.model.name, said[1], before[0], before[1])


def _facts(told: Mapping[str, Any] | None) -> tuple[str | None, int | None]:
    return ((told or {}).get("model"), (told or {}).get("memory_mib"))


def accept_node(*, node: Node, actor: User | None, now: datetime, seen: str = "") -> Node:
    """Let what is new or changed on a node serve people, and what is not known here end. Safe to repeat.

    ``seen`` is the list that was looked at; raises Conflict when it is another one by now, or when a device that
    became another model still holds leases. ``actor`` None is whoever has a shell on the portal.
    """
    return with_retries(lambda: _accept(node, actor, now, seen))


@transaction.atomic
def _accept(node: Node, actor: User | None, now: datetime, seen: str) -> Node:
    devices = list(node.devices.select_for_update(no_key=True, of=("self",)).order_by("id"))
    locked = Node.objects.select_for_update().get(pk=node.pk)
    waiting = waiting_of(locked)
    if seen and seen != waiting.seen:
        raise Conflict(_("What waits on %(node)s has changed meanwhile. Look again.") % {"node": node.name})
    if not waiting:
        return locked
    fresh = [device for device in devices if not device.is_accepted]
    for device in fresh:
        _take_in(device)
    locked.ahead_at, locked.unknown_leases = None, []
    locked.save(update_fields=["ahead_at", "unknown_leases"])
    record(
        actor,
        "node.accepted",
        node.name,
        at=now,
        devices=[device.uuid for device in fresh],
        ended_leases=list(waiting.unknown_leases),
    )
    publish_on_commit(NODES, [node.name])
    outbox.add(outbox.RUN_CYCLE, key=f"node-{node.pk}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return locked


def _take_in(device: Device) -> None:
    """Accept one device as what its node says it is now."""
    slug = model_slug(str(device.said.get("model", "")))
    told = device.said.pop("profiles", None)
    is_other = bool(slug) and slug != device.model.slug
    if is_other:
        if Placement.objects.filter(device=device, is_live=True).exists():
            raise Conflict(
                _("Device %(index)s became another model and still holds leases. Drain the node first.")
                % {"index": device.index}
            )
        device.model = DeviceModel.objects.get(slug=slug)
    if told or (told is not None and is_other):
        device.profiles = learn_sizes(device.model, told)
    device.accepted, device.is_accepted = device.said, True
    device.save(update_fields=["model", "said", "accepted", "is_accepted", "profiles"])


def tell_waiting(node: Node, before: Sequence[tuple[str, Any]], *, now: datetime) -> None:
    """Tell operators what waits on a node, once per list; ``before`` is what waited earlier in the transaction."""
    after = waiting_devices(node.pk)
    if after and after != before:
        record(None, "node.waits", node.name, at=now, devices=[uuid for uuid, _said in after])
        facts = {"node": node.name, "count": len(after)}
        notify(operators(), "node.waits", target=f"node-{node.pk}", at=now, is_news=True, **facts)


def waiting_devices(node_id: int) -> list[tuple[str, Any]]:
    """Return the devices of a node that wait, and what they are said to be."""
    rows = Device.objects.filter(node_id=node_id, is_accepted=False).order_by("uuid")
    return list(rows.values_list("uuid", "said"))
