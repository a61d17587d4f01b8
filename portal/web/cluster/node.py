"""What the page of one node says beside its map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import ngettext, pgettext

from portal.fleet.health import CRITICAL, DEGRADING
from portal.fleet.health_words import code_text
from portal.fleet.models import Device, Health, HealthEvent, Mode, Node
from portal.fleet.pools import is_pool
from portal.leases.models import Lease
from portal.leases.selectors import visible_leases
from portal.leases.states import LIVE_LEASES
from portal.teams.selectors import Rights
from portal.web.figures import memory
from portal.web.nodes.states import driver_text

SHOWN_LEASES = 50
TONES = {"ok": "good", "degraded": "warn", "quarantined": "bad", "missing": "bad"}


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device in words."""

    index: int
    uuid: str
    short_uuid: str
    model: str
    memory: str | None
    modes: str
    health: Any
    tone: str
    reason: str
    open_events: int
    seen_at: datetime | None
    may_clear: bool


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What an operator wants to know of the agent behind a node."""

    desired: int
    observed: int
    epoch: int
    boot_id: str
    version: str
    driver: str
    is_enrolled: bool
    enrolled_at: datetime | None
    seen_at: datetime | None

    @property
    def is_behind(self) -> bool:
        """Say whether the agent has not yet carried out what it was told last."""
        return self.observed < self.desired


def devices_of(node: Node, *, is_operator: bool) -> list[DeviceRow]:
    """Return the node's devices with the number of their open health events.

    Operators read why a device is not well in the words of its agent or of who took it out of work; others what
    its faults mean.
    """
    found = HealthEvent.objects.filter(node=node, device__isnull=False, cleared_at=None).order_by("at", "id")
    open_events: dict[int, list[HealthEvent]] = {}
    for event in found:
        open_events.setdefault(event.device_id or 0, []).append(event)
    return [
        DeviceRow(
            index=row.index,
            uuid=row.uuid,
            short_uuid=f"{row.uuid[:12]}…",
            model=row.model.name,
            memory=memory(row.model.memory_mib),
            modes=pgettext("list", ", ").join(str(Mode(mode).label) for mode in row.modes),
            health=row.get_health_display(),
            tone=TONES[row.health],
            reason=row.health_reason if is_operator else _known_reason(open_events.get(row.pk, [])),
            open_events=len(open_events.get(row.pk, [])),
            seen_at=row.last_seen_at,
            may_clear=row.pk in open_events or row.health in (Health.DEGRADED, Health.QUARANTINED),
        )
        for row in node.devices.select_related("model").order_by("index")
    ]


def pool_text(node: Node, devices: Sequence[Device]) -> str:
    """Return what a pool of a cluster is, "" for a host of its own."""
    if not is_pool(node) or not devices:
        return ""
    lacking = sum(device.health == Health.MISSING for device in devices)
    said = ngettext(
        "%(n)d unit of %(model)s. The cluster decides on which host a lease runs.",
        "%(n)d interchangeable units of %(model)s. The cluster decides on which hosts a lease runs.",
        len(devices),
    ) % {"n": len(devices), "model": devices[0].model.name}
    if not lacking:
        return said
    return f"{said} " + ngettext(
        "%(n)d of them cannot be had now: another job holds it, or its host is out of service.",
        "%(n)d of them cannot be had now: other jobs hold them, or their hosts are out of service.",
        lacking,
    ) % {"n": lacking}


def _known_reason(events: Sequence[HealthEvent]) -> str:
    """Return what the newest fault means that takes a device out of work, or degrades it."""
    critical = [event for event in events if event.severity == CRITICAL]
    telling = critical or [event for event in events if event.action == DEGRADING]
    return capfirst(str(code_text(telling[-1].code))) if telling else ""


def leases_on(rights: Rights, node: Node) -> list[Lease]:
    """Return the live leases on the node that this person may see, the next to end first."""
    return list(
        visible_leases(rights).filter(node=node, state__in=LIVE_LEASES).order_by("not_after")[:SHOWN_LEASES]
    )


def facts_of(node: Node) -> AgentFacts:
    """Return what is known of the agent."""
    return AgentFacts(
        desired=node.desired_revision,
        observed=node.observed_revision,
        epoch=node.epoch,
        boot_id=node.boot_id,
        version=node.agent_version,
        driver=driver_text(node),
        is_enrolled=node.public_key is not None,
        enrolled_at=node.enrolled_at,
        seen_at=node.last_seen_at,
    )
