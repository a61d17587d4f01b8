"""What travels between web processes each second: one frame per node, as nested lists of figures.

Tuples, because they are written and read as JSON lists without any mapping; None is unknown.
Memory in MiB, power in watts, temperature in degrees Celsius, ``at`` in Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class DeviceNow(NamedTuple):
    """One device at one second."""

    uuid: str
    util: float | None
    memory_used_mib: int | None
    memory_mib: int
    power_w: float | None
    temp: float | None
    source: str


class ExtraFigures(NamedTuple):
    """What some devices tell beside utilisation and memory: percent of SMs, tensor cores and memory bandwidth.

    ``power_w`` is an estimate of a part's power. ``sources`` names where each came from, by field.
    """

    sm: float | None
    tensor: float | None
    bandwidth: float | None
    power_w: float | None
    sources: dict[str, str]


class SlotNow(NamedTuple):
    """One slot of a lease at one second. ``is_whole`` says that it is the whole board.

    ``more`` is None where nothing of it is known, as on most devices: a frame stays as small as it was.
    """

    lease: str
    team_id: int
    device: str
    start: int
    size: int
    is_whole: bool
    util: float | None
    memory_used_mib: int | None
    memory_mib: int
    source: str
    more: ExtraFigures | None = None


FIELDS = len(SlotNow._fields)


class Frame(NamedTuple):
    """What one node measured at one second; ``seq`` rises per boot id."""

    node: str
    at: float
    boot_id: str
    seq: int
    devices: tuple[DeviceNow, ...]
    slots: tuple[SlotNow, ...]


def pack(frame: Frame) -> str:
    """Return the frame as one JSON list."""
    return json.dumps(frame, separators=(",", ":"), allow_nan=False)


def unpack(message: Sequence[Any]) -> Frame:
    """Return the frame in a message, or raise TypeError or ValueError for one of another version."""
    node, at, boot_id, seq, devices, slots = message
    plain = SlotNow._make
    read = tuple(plain(slot) if len(slot) == FIELDS and slot[-1] is None else _slot(*slot) for slot in slots)
    return Frame(node, at, boot_id, seq, tuple(map(DeviceNow._make, devices)), read)


def _slot(*figures: Any) -> SlotNow:
    """Return a slot that says more, or one of an earlier version that could not."""
    slot = SlotNow(*figures)
    return slot if slot.more is None else slot._replace(more=ExtraFigures._make(slot.more))


def blank(frame: Frame) -> Frame:
    """Return the frame with every figure unknown: what is left to say about a node that went silent."""
    devices = [d._replace(util=None, memory_used_mib=None, power_w=None, temp=None) for d in frame.devices]
    slots = [slot._replace(util=None, memory_used_mib=None, more=None) for slot in frame.slots]
    return frame._replace(devices=tuple(devices), slots=tuple(slots))


class LeaseNow(NamedTuple):
    """A lease at one second, over all its slots; ``more`` is None where nothing of it is known."""

    node: str
    at: float
    util: float | None
    memory_used_mib: int | None
    memory_mib: int
    power_w: float | None
    source: str
    slots: tuple[SlotNow, ...]
    more: ExtraFigures | None = None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None as soon as one value is unknown."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known and len(known) == len(values) else None


def total(values: Sequence[Any]) -> Any:
    """Return the sum, or None as soon as one value is unknown."""
    return None if not values or None in values else sum(values)


def lease_now(frame: Frame, slots: Sequence[SlotNow]) -> LeaseNow:
    """Return a lease's own figures from its slots in a frame.

    Power is measured per board: of a part of one there is an estimate at best, which ``more`` says.
    """
    boards: dict[str, float | None] = {device.uuid: device.power_w for device in frame.devices}
    more = _together(slots)
    power = [
        boards.get(slot.device) if slot.is_whole else slot.more.power_w if slot.more is not None else None
        for slot in slots
    ]
    return LeaseNow(
        node=frame.node,
        at=frame.at,
        util=mean([slot.util for slot in slots]),
        memory_used_mib=total([slot.memory_used_mib for slot in slots]),
        memory_mib=sum(slot.memory_mib for slot in slots),
        power_w=total(power),
        source=", ".join(sorted({slot.source for slot in slots if slot.source})),
        slots=tuple(slots),
        more=more,
    )


def _together(slots: Sequence[SlotNow]) -> ExtraFigures | None:
    """Return what is known beside utilisation and memory over all slots of a lease, None for nothing."""
    if len(slots) == 1:
        return slots[0].more
    known = [slot.more for slot in slots if slot.more is not None]
    if not known:
        return None
    every = [slot.more for slot in slots]
    sources: dict[str, set[str]] = {}
    for more in known:
        for name, source in more.sources.items():
            sources.setdefault(name, set()).add(source)
    return ExtraFigures(
        sm=mean([more and more.sm for more in every]),
        tensor=mean([more and more.tensor for more in every]),
        bandwidth=mean([more and more.bandwidth for more in every]),
        power_w=total([more and more.power_w for more in every]),
        sources={name: ", ".join(sorted(found)) for name, found in sources.items()},
    )


def by_lease(slots: Iterable[SlotNow]) -> dict[str, list[SlotNow]]:
    """Return the slots grouped by lease."""
    found: dict[str, list[SlotNow]] = {}
    for slot in slots:
        found.setdefault(slot.lease, []).append(slot)
    return found
