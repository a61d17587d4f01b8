"""What is measured of a lease beside utilisation and memory, each value with the source it came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.leases.models import Lease
from portal.telemetry.selectors import latest_for_leases

_LABELS = {
    "sm": gettext_lazy("Multiprocessors at work"),
    "tensor": gettext_lazy("Tensor cores at work"),
    "bandwidth": gettext_lazy("Memory bandwidth used"),
    "power_w": gettext_lazy("Power drawn"),
}
_UNITS = {"power_w": "W"}


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One figure of the live page; ``text`` "" is unknown, and the page shows it once a frame tells it."""

    field: str
    label: Any
    text: str
    source: str


def live_values(lease: Lease, *, now: datetime) -> list[LiveValue]:
    """Return the figures in the order in which they are shown, as far as known now; no query."""
    seen = latest_for_leases([lease.uid], now=now)[lease.uid]
    figures: dict[str, float | None] = dict.fromkeys(_LABELS)
    sources: dict[str, str] = {}
    if seen is not None:
        figures["power_w"] = seen.power_w
        if seen.more is not None:
            figures |= {"sm": seen.more.sm, "tensor": seen.more.tensor, "bandwidth": seen.more.bandwidth}
            sources = seen.more.sources
    return [
        LiveValue(
            name, label, _text(figures[name], _UNITS.get(name, "%")), source_text(sources.get(name, ""))
        )
        for name, label in _LABELS.items()
    ]


def source_text(source: str) -> str:
    """Return a source in words; what we have no word for is shown as the agent named it."""
    return _("estimated") if source == "estimate" else source


def _text(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number_format(round(value), 0)} {unit}"
