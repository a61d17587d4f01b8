"""What a node's page says about its life: how far a drain is, how old its key is, what enrolling it anew would do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.agents.acceptance import waiting_of
from portal.agents.keys import can_rotate, key_since
from portal.fleet.draining import DrainState, drain_state
from portal.fleet.models import Node
from portal.leases.selectors import standing_on
from portal.web.figures import memory

DRAIN_WORDS: dict[str, Any] = {
    "draining": gettext_lazy("Draining"),
    "overdue": gettext_lazy("Not drained in time"),
    "drained": gettext_lazy("Drained"),
}
DRAIN_TONES = {
    "draining": ("warn", "hourglass"),
    "overdue": ("bad", "alert-triangle"),
    "drained": ("good", "check"),
}


@dataclass(frozen=True, slots=True)
class LifeFacts:
    """A node's drain and key for operators. None is unknown, or not there."""

    drain: DrainState
    drain_text: Any
    tone: str
    icon: str
    by: datetime | None
    drained_at: datetime | None
    standing: int
    key_since: datetime | None
    key_asked_at: datetime | None
    can_rotate: bool
    runtime: str
    images: str


def drain_text(node: Node, *, now: datetime) -> str:
    """Return how far a node's drain is, in a word; "" without one."""
    state = drain_state(node, now=now)
    return str(DRAIN_WORDS[state]) if state else ""


def life_facts(node: Node, *, now: datetime) -> LifeFacts:
    """Return what an operator wants to know of a node's drain and key, in one query."""
    state = drain_state(node, now=now)
    tone, icon = DRAIN_TONES.get(state, ("quiet", "clock"))
    return LifeFacts(
        drain=state,
        drain_text=DRAIN_WORDS.get(state, ""),
        tone=tone,
        icon=icon,
        by=node.drain_by,
        drained_at=node.drained_at,
        standing=len(standing_on(node)),
        key_since=key_since(node),
        key_asked_at=node.rotate_asked_at,
        can_rotate=can_rotate(node),
        runtime=node.runtime,
        images=_images_text(node),
    )


def _images_text(node: Node) -> str:
    """Return what images of jobs take on a node, "" where its agent does not say."""
    if node.images_mib is None:
        return ""
    if node.image_limit_mib is None:
        return memory(node.images_mib) or ""
    sizes = {"taken": memory(node.images_mib), "limit": memory(node.image_limit_mib)}
    return _("%(taken)s of %(limit)s") % sizes


@dataclass(frozen=True, slots=True)
class WaitingDeviceRow:
    """A device that waits for an operator; ``was`` is as what it was accepted before, "" for a new one."""

    index: int
    uuid: str
    short_uuid: str
    model: str
    memory: str | None
    was: str


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """What of a node waits for an operator, as its page shows it."""

    devices: list[WaitingDeviceRow]
    unknown_leases: tuple[str, ...]
    is_ahead: bool
    hidden: dict[str, str]


def waiting_rows(node: Node) -> WaitingRows | None:
    """Return what of a node waits for an operator, None where nothing does."""
    waiting = waiting_of(node)
    if not waiting:
        return None
    rows = [
        WaitingDeviceRow(
            index=one.index,
            uuid=one.uuid,
            short_uuid=f"{one.uuid[:12]}…",
            model=one.model,
            memory=memory(one.memory_mib),
            was=" · ".join(part for part in (one.was_model, memory(one.was_memory_mib)) if part),
        )
        for one in waiting.devices
    ]
    return WaitingRows(rows, waiting.unknown_leases, waiting.is_ahead, {"seen": waiting.seen})


def enrol_effects(node: Node) -> list[str]:
    """Return what a new enrolment of this node does, one sentence each, before it is done."""
    found = [
        _("Making a token changes nothing. As soon as an agent uses it, the present key opens no more."),
        _(
            "If that agent still has its state folder, it knows its leases: they go on, at the same place and price."
        ),
        _(
            "If the folder is lost, the leases are lost with it: nothing is billed after the node's last word, and "
            "their requests go back into the queue with the time that is left."
        ),
    ]
    return found if node.public_key is not None else found[:1]
