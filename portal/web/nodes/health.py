"""Health of a node and its devices in words: events, what devices cannot offer, the form of a quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext

from portal.fleet.health import BY_HAND, CRITICAL
from portal.fleet.health_words import action_text, code_name, code_text
from portal.fleet.models import Device, Health, HealthEvent, Mode, Node

SHOWN_EVENTS = 20


@dataclass(frozen=True, slots=True)
class EventRow:
    """One health event; ``index`` is its device's, None for the node as a whole, ``slices`` says which it hits.

    ``detail`` and ``cleared_by`` are for operators, "" for others: they may name other teams' leases and programs.
    """

    node: str
    index: int | None
    uuid: str
    title: str
    means: str
    detail: str
    action: str
    slices: str
    tone: str
    at: datetime
    is_open: bool
    is_critical: bool
    is_quiet: bool
    quiet_since: datetime | None
    until: datetime | None
    is_over_by_itself: bool
    cleared_at: datetime | None
    cleared_by: str


@dataclass(frozen=True, slots=True)
class UnofferedMode:
    """What devices could offer and cannot, with what to install or allow; ``devices`` names those with the same."""

    mode: str
    why: str
    devices: str


class QuarantineForm(forms.Form):
    """Which device leaves work, and why."""

    device = forms.ChoiceField(label=_("Device"), widget=forms.Select({"class": "form-select"}))
    reason = forms.CharField(
        label=_("Reason"),
        max_length=200,
        help_text=_("The people whose leases are on it are told that it leaves work."),
        widget=forms.TextInput({"class": "form-control", "placeholder": _("its fan is loud")}),
    )

    def __init__(self, *args: Any, devices: Sequence[Device], **kwargs: Any) -> None:
        kwargs.setdefault("auto_id", "quarantine_%s")
        super().__init__(*args, **kwargs)
        field = self.fields["device"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(device.uuid, f"{device.index} · {device.model.name}") for device in devices]


def event_rows(node: Node, *, is_operator: bool) -> list[EventRow]:
    """Return the node's health events, the open ones first, then the newest, with details for operators."""
    rows = HealthEvent.objects.filter(node=node).select_related("device", "node")
    still_open = list(rows.filter(cleared_at=None).order_by("-at")[: 5 * SHOWN_EVENTS])
    over = list(rows.exclude(cleared_at=None).order_by("-at")[: max(0, SHOWN_EVENTS - len(still_open))])
    return [event_row(event, is_operator=is_operator) for event in (*still_open, *over)]


def event_row(event: HealthEvent, *, is_operator: bool) -> EventRow:
    """Return one event in words; its node and device must be at hand."""
    is_open, is_critical = event.cleared_at is None, event.severity == CRITICAL
    return EventRow(
        node=event.node.name,
        index=event.device.index if event.device else None,
        uuid=event.device.uuid if event.device else "",
        title=code_name(event.code),
        means=_means(event.code),
        detail=event.detail if is_operator else "",
        action=action_text(event.action) if is_open and event.code != BY_HAND else "",
        slices=_slices_text(event.starts),
        tone="quiet" if not is_open else "bad" if is_critical else "warn",
        at=event.at,
        is_open=is_open,
        is_critical=is_critical,
        is_quiet=is_open and event.unreported_at is not None,
        quiet_since=event.unreported_at,
        until=event.until if is_open else None,
        is_over_by_itself=event.until is not None,
        cleared_at=event.cleared_at,
        cleared_by=event.cleared_by if event.is_cleared_by_hand and is_operator else "",
    )


def _means(code: str) -> str:
    """Return what a code means as a sentence, "" for one that is not known."""
    said = capfirst(code_text(code))
    return str(_("%(said)s.") % {"said": said}) if said else ""


def _slices_text(starts: Sequence[int] | None) -> str:
    """Return which MIG slices an event hits, "" where it concerns the whole device or that is not known."""
    if not starts:
        return ""
    places = pgettext("list", ", ").join(str(start) for start in starts)
    return ngettext(
        "It hit only the slice that begins at %(places)s.",
        "It hit only the slices that begin at %(places)s.",
        len(starts),
    ) % {"places": places}


def refusals_of(devices: Sequence[Device]) -> list[UnofferedMode]:
    """Return what a node's devices cannot offer; the same for several devices is said once."""
    found: dict[tuple[str, str], list[int]] = {}
    for device in devices:
        told = device.refusals if isinstance(device.refusals, dict) else {}
        for mode, why in sorted(told.items()):
            found.setdefault((str(mode), str(why)), []).append(device.index)
    labels = {str(value): str(label) for value, label in Mode.choices}
    return [
        UnofferedMode(labels.get(mode, mode), why, ", ".join(str(index) for index in sorted(indexes)))
        for (mode, why), indexes in sorted(found.items())
    ]


def can_quarantine(devices: Sequence[Device]) -> list[Device]:
    """Return the devices that an operator may take out of work now."""
    return [device for device in devices if device.health in (Health.OK, Health.DEGRADED)]
