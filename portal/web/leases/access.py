"""How the holder reaches their slices: where they are, what to put into the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext_lazy

from nodeagent.protocol.variables import export_lines
from portal.leases.access import WayIn, device_nodes, way_in, whole_environment
from portal.leases.models import Placement
from portal.web.figures import memory

_LABELS = {
    "unit": gettext_lazy("A shell inside the lease"),
    "docker": gettext_lazy("A container with Docker"),
    "podman": gettext_lazy("A container with Podman"),
    "job": gettext_lazy("A shell inside its job, on a login host of the cluster"),
    "pod": gettext_lazy("A shell inside its pod, where kubectl is logged in to the cluster"),
    "file": gettext_lazy("Its environment, in your shell"),
}


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
class LeaseDevice:
    """A device with the slots this lease holds on it; ``grid`` is the scale of the drawing."""

    uuid: str
    index: int
    model: str
    grid: int
    slots: list[SlotView]
    names: list[str]


@dataclass(frozen=True)
class Command:
    """One way in: what it is for, and the line to type on the node."""

    label: str
    code: str


@dataclass(frozen=True)
class WaysIn:
    """The ways in, the environment to paste into a shell, and the device nodes that were opened.

    ``is_set`` says that the environment is in place wherever a command leads; ``gang`` are the lines that name
    the other nodes, which are not. ``is_isolated`` None is unknown. The folders are those of ``WayIn``.
    """

    snippet: str
    nodes: list[str]
    commands: list[Command]
    gang: str
    is_isolated: bool | None
    scratch: str
    scratch_gib: int | None
    data_sets: str

    @property
    def is_set(self) -> bool:
        """Say whether a command brings the environment along."""
        return bool(self.commands)


def cluster_job(placements: Sequence[Placement]) -> WayIn | None:
    """Return the job that a lease is in a cluster, and why that waits; None for one of a host's own devices."""
    way = way_in(placements)
    return way if way.job or way.reason else None


def entrance(placements: Sequence[Placement], gang: Mapping[str, str]) -> WaysIn | None:
    """Return how to reach the slices, or None before the agent has said so; ``gang`` names its other nodes."""
    if not placements or not all(p.partition_uuid for p in placements):
        return None
    others = export_lines(gang)
    lines = export_lines(whole_environment(placements, {}))
    nodes = {node for placement in placements for node in device_nodes(placement)}
    way = way_in(placements)
    lease = placements[0].lease.uid if placements[0].lease else ""
    commands = [Command(str(_LABELS[kind]), code) for kind, code in way.commands(lease)]
    return WaysIn(
        snippet="\n".join([*lines, *others]),
        nodes=sorted(nodes),
        commands=commands,
        gang="\n".join(others),
        is_isolated=way.is_isolated,
        scratch=way.scratch,
        scratch_gib=way.scratch_gib,
        data_sets=way.data_sets,
    )


def device_views(placements: Sequence[Placement]) -> list[LeaseDevice]:
    """Return the devices a lease is on, in the node's order; placements read with device and model."""
    by_device: dict[int, list[Placement]] = {}
    for placement in placements:
        by_device.setdefault(placement.device_id, []).append(placement)
    return [_device(group) for group in by_device.values()]


def _device(group: Sequence[Placement]) -> LeaseDevice:
    device = group[0].device
    is_shared = group[0].host_id is not None
    slots, at = [], 0
    for placement in group:
        start, size = (at, placement.share_milli) if is_shared else (placement.start, placement.size)
        at += size
        label = placement.profile or memory(placement.memory_mib) or ""
        slots.append(SlotView(start, size, label, f"{label} · {placement.partition_uuid or '…'}"))
    return LeaseDevice(
        uuid=device.uuid,
        index=device.index,
        model=device.model.name,
        grid=1000 if is_shared else device.model.grid,
        slots=slots,
        names=[placement.partition_uuid for placement in group if placement.partition_uuid],
    )
