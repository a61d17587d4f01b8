"""What the pages of nodes say about power: for everybody whether a node sleeps, for operators why and what it saves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.fleet.models import Node, NodeSleep, Power
from portal.fleet.power import TURNING, can_sleep, rule_of, shown_power, why_not
from portal.telemetry.energy import Saving, saving

SAVED_OVER = timedelta(days=30)
WORDS: dict[str, Any] = {
    "awake": gettext_lazy("Awake"),
    "asleep": gettext_lazy("Asleep"),
    "unsupported": gettext_lazy("Cannot sleep"),
}
TONES = {"awake": ("good", "sun"), "asleep": ("info", "moon")}


@dataclass(frozen=True, slots=True)
class PowerFacts:
    """One node's power for operators. None is unknown."""

    state: str
    text: Any
    tone: str
    icon: str
    note: str
    since: datetime | None
    idle_since: datetime | None
    kept_until: datetime | None
    is_sent: bool
    can_sleep: bool
    why_not: str
    wake_s: int | None
    asleep: str
    saved: str | None


def power_text(node: Node) -> Any:
    """Return a node's power in a word; None where it is unknown."""
    state = shown_power(node)
    if state == TURNING:
        return _("Falling asleep") if node.power_desired == Power.ASLEEP else _("Waking up")
    return WORDS.get(state)


def power_facts(node: Node, *, now: datetime) -> PowerFacts:
    """Return what an operator wants to know of a node's power, in two queries."""
    state = shown_power(node)
    rule = rule_of(node, now=now)
    tone, icon = TONES.get(state, ("quiet", "clock"))
    last = NodeSleep.objects.filter(node=node).first()
    found = saving(now=now, since=now - SAVED_OVER, node_id=node.pk)
    return PowerFacts(
        state=state,
        text=power_text(node),
        tone=tone,
        icon=icon,
        note=node.power_note,
        since=_since(state, last),
        idle_since=node.idle_since if state == "awake" else None,
        kept_until=node.power_rule_until if rule == Power.AWAKE else None,
        is_sent=rule == Power.ASLEEP,
        can_sleep=can_sleep(node),
        why_not="" if can_sleep(node) else why_not(node),
        wake_s=node.wake_s,
        asleep=hours_text(found.asleep_s),
        saved=energy_text(found) if found.sleeps else None,
    )


def fleet_saving(*, now: datetime) -> tuple[str, str | None] | None:
    """Return how long nodes slept in the last 30 days and what that saved; None when none did."""
    found = saving(now=now, since=now - SAVED_OVER)
    return (hours_text(found.asleep_s), energy_text(found)) if found.sleeps else None


def energy_text(found: Saving) -> str | None:
    """Return the saving in kWh; None where it was not measured."""
    kwh = None if found.saved_wh is None else found.saved_wh / 1000
    if kwh is None:
        return None
    digits = 1 if abs(kwh) >= 10 else 2
    return _("%(kwh)s kWh") % {"kwh": number_format(round(kwh, digits), digits)}


def hours_text(seconds: int) -> str:
    """Return a time in hours, in minutes where it is less than one."""
    if seconds < 3600:
        return _("%(n)s min") % {"n": seconds // 60}
    return _("%(hours)s h") % {"hours": number_format(round(seconds / 3600, 1), 1)}


def _since(state: str, last: NodeSleep | None) -> datetime | None:
    if last is None:
        return None
    return last.began_at if state == "asleep" else last.ended_at
