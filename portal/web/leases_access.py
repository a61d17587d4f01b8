"""How the holder reaches their slices: where they are, what to put into the environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portal.leases.models import Placement
from portal.web.figures import memory

DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class SlotView:
    """One slot in the drawing of its device."""

    start: int
    size: int
    label: str
    title: str
    tone: int = 1
    kind: str = "lease"
    mine: bool = True
    url: str = ""


@dataclass(frozen=True)
class DeviceView:
    """A device with the slots this lease holds on it; ``grid`` is the scale of the drawing."""

    uuid: str
    index: int
    model: str
    grid: int
    slots: list[SlotView]
    names: list[str]


@dataclass(frozen=True)
class Entrance:
    """The lines to paste into a shell, and the device nodes that were opened."""

    snippet: str
    nodes: list[str]


def entrance(placements: Sequence[Placement], gang: Mapping[str, str]) -> Entrance | None:
    """Return how to reach the slices, or None before the agent has said so; ``gang`` names its other nodes."""
    if not placements or not all(p.partition_uuid for p in placements):
        return None
    env: dict[str, list[str]] = {}
    for placement in placements:
        told = placement.access.get("env") if isinstance(placement.access, dict) else None
        for name, value in (told or {DEVICES: placement.partition_uuid}).items():
            values = env.setdefault(str(name), [])
            if str(value) not in values:
                values.append(str(value))
    lines = [f"export {name}={shlex.quote(','.join(values))}" for name, values in sorted(env.items())]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in gang.items()]
    nodes = {str(n) for p in placements if isinstance(p.access, dict) for n in p.access.get("nodes") or ()}
    return Entrance("\n".join(lines), sorted(nodes))


def device_views(placements: Sequence[Placement]) -> list[DeviceView]:
    """Return the devices a lease is on, in the node's order; placements read with device and model."""
    by_device: dict[int, list[Placement]] = {}
    for placement in placements:
        by_device.setdefault(placement.device_id, []).append(placement)
    return [_device(group) for group in by_device.values()]


def _device(group: Sequence[Placement]) -> DeviceView:
    device = group[0].device
    is_shared = group[0].host_id is not None
    slots, at = [], 0
    for placement in group:
        start, size = (at, placement.share_milli) if is_shared else (placement.start, placement.size)
        at += size
        label = placement.profile or memory(placement.memory_mib) or ""
        slots.append(SlotView(start, size, label, f"{label} · {placement.partition_uuid or '…'}"))
    return DeviceView(
        uuid=device.uuid,
        index=device.index,
        model=device.model.name,
        grid=1000 if is_shared else device.model.grid,
        slots=slots,
        names=[placement.partition_uuid for placement in group if placement.partition_uuid],
    )
