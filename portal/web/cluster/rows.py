"""The map in words: sums, and one table row per slice for those who cannot or do not want to look."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.utils.translation import gettext_lazy as _

from portal.web.cluster.map import FleetView
from portal.web.cluster.slices import OTHERS, SHARES
from portal.web.figures import gpus

READABLE_PERCENT = 12
WORDS: dict[str, Any] = {
    "lease": _("In use"),
    "free": _("Free"),
    "stranded": _("Stranded"),
    "cleaning": _("Being cleaned"),
    "reserved": _("Kept for sharing"),
    "away": _("Out of service"),
    "blocked": _("Blocked"),
}


@dataclass(frozen=True, slots=True)
class ConditionShare:
    """How much of the cluster is in one condition: a stretch of one bar, in thousandths of the whole."""

    kind: str
    word: Any
    devices: str | None
    percent: int
    start: int
    size: int

    @property
    def title(self) -> str:
        """Return the stretch in words."""
        return f"{self.word}: {self.devices} ({self.percent} %)"

    @property
    def label(self) -> Any:
        """Return the word where the stretch is wide enough to hold it."""
        return self.word if self.percent >= READABLE_PERCENT else ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All devices as one bar."""

    devices: int
    scale: int
    shares: list[ConditionShare]


@dataclass(frozen=True, slots=True)
class TeamKey:
    """The colour of a team on the map."""

    tone: int
    name: str
    mine: bool


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice as a table row."""

    node: str
    node_url: str
    device: str
    place: str
    word: Any
    team: str
    url: str
    mine: bool
    until: datetime | None
    title: str


def capacity_of(fleet: FleetView) -> Capacity:
    """Return the whole capacity by condition; use and free room are always listed."""
    count = len(fleet.devices)
    total = count * SHARES or 1
    found, at, sums = [], 0, fleet.milli()
    for kind, word in WORDS.items():
        milli = sums.get(kind, 0)
        if milli or kind in ("lease", "free"):
            start, end = at * SHARES // total, (at + milli) * SHARES // total
            percent = round(milli * 100 / total)
            found.append(ConditionShare(kind, word, gpus(milli), percent, start, end - start))
            at += milli
    return Capacity(count, SHARES, found)


def table_of(fleet: FleetView, most: int | None = None) -> list[SliceRow]:
    """Return one row per slice, in the order of the map; the first ``most`` of them."""
    slices = (
        (node, device, slot) for node in fleet.nodes for device in node.devices for slot in device.slots
    )
    return [
        SliceRow(
            node=node.name,
            node_url=node.url,
            device=f"{device.index} · {device.model}",
            place=_place(slot.start, slot.size, device.grid),
            word=WORDS[slot.kind],
            team=slot.team,
            url=slot.url,
            mine=slot.mine,
            until=slot.until,
            title=slot.title,
        )
        for node, device, slot in islice(slices, most)
    ]


def teams_of(fleet: FleetView) -> list[TeamKey]:
    """Return the teams on the map with their colours, own teams first; those out of sight share one entry."""
    found = {
        (slot.tone, slot.team): TeamKey(slot.tone, slot.team, slot.mine)
        for device in fleet.devices
        for slot in device.slots
        if slot.team
    }
    return sorted(found.values(), key=lambda key: (key.tone == OTHERS, not key.mine, key.name.lower()))


def _place(start: int, size: int, grid: int) -> str:
    if grid == SHARES:
        return f"{size / 10:.0f} %"
    return f"{start}–{start + size - 1} / {grid}" if grid > 1 else "1 / 1"
