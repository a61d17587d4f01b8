"""Facts about boards, read once from ``boards.json``: for the simulated driver, demo data and previews."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from nodeagent.protocol.messages import DeviceFact, ProfileFact
from nodeagent.protocol.uuids import simulated_uuid

# Lower bounds, in TFLOPS, of classes 1 to 6 (docs/topology.md).
CLASSES: Final = (0, 100, 250, 500, 1000, 2000)


class UnknownBoardError(LookupError):
    """No such board in the table; the message names those that exist."""

    code = "unknown_board"


@dataclass(frozen=True, slots=True)
class BoardProfile:
    """One MIG size on a board. ``nvml_enum`` asks for it, ``profile_id`` is the number the driver answers."""

    name: str
    nvml_enum: int
    profile_id: int
    compute_slices: int
    memory_slices: int
    memory_mib: int | None
    sm_count: int | None
    max_instances: int
    starts: tuple[int, ...]
    copy_engines: int | None = None


@dataclass(frozen=True, slots=True)
class BoardModel:
    """One kind of accelerator. Unknown figures are None; PCI device ids are those of all its products."""

    id: str
    vendor: str
    product_names: tuple[str, ...]
    architecture: str
    memory_slices: int
    memory_mib: int | None
    bandwidth_gbps: int | None
    fp16_tflops: int | None
    sm_total: int | None
    modes: tuple[str, ...]
    max_clients: int
    link: str
    idle_w: float | None
    limit_w: float | None
    resets_for_mig: bool
    mig_survives_reboot: bool
    has_slice_metrics: bool
    profiles: tuple[BoardProfile, ...]
    pci_device_ids: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The vendor's product name, for people."""
        return self.product_names[0]

    @property
    def compute_class(self) -> int | None:
        """The step of its dense 16-bit matrix rate (see ``CLASSES``); None where no figure was found."""
        return None if self.fp16_tflops is None else bisect_right(CLASSES, self.fp16_tflops)

    def profile(self, name: str) -> BoardProfile | None:
        """Return the profile with this name, or None when the board has none."""
        return next((p for p in self.profiles if p.name == name), None)


def board(model: str) -> BoardModel:
    """Return a board by its id, alias or product name; raises UnknownBoardError naming the choices."""
    found = _by_name().get(model.casefold())
    if found is None:
        choices = ", ".join(sorted(all_boards()))
        raise UnknownBoardError(f"board {model!r} is not in the table; known: {choices}")
    return found


@cache
def all_boards() -> dict[str, BoardModel]:
    """Return every board by id, in the order of the table."""
    return {row["id"]: _board(row) for row in _table()["boards"]}


def device_facts(
    node: str, model: str, count: int, modes: tuple[str, ...] = (), first_index: int = 0
) -> tuple[DeviceFact, ...]:
    """Return what a simulated node with ``count`` such boards reports, so demo data can say it in advance.

    ``modes`` narrows the sharing modes of the board. Raises ValueError when the board lacks one of
    them or its memory is unknown. MIG sizes whose memory is unknown are left out.
    """
    kind = board(model)
    chosen = modes or kind.modes
    if missing := [mode for mode in chosen if mode not in kind.modes]:
        raise ValueError(f"{kind.id} offers {', '.join(kind.modes)}, not {', '.join(missing)}")
    if kind.memory_mib is None:
        raise ValueError(f"the memory of {kind.id} is unknown; choose another board")
    return tuple(_fact(node, kind, index, chosen) for index in range(first_index, first_index + count))


def _fact(node: str, kind: BoardModel, index: int, modes: tuple[str, ...]) -> DeviceFact:
    uuid = simulated_uuid(node, index, kind.vendor)
    return DeviceFact(
        uuid=uuid,
        index=index,
        vendor=kind.vendor,
        model=kind.id,
        memory_mib=kind.memory_mib or 0,
        grid=kind.memory_slices,
        modes=modes,
        sm_count=kind.sm_total,
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
        serial=uuid[-12:].upper(),
        numa_node=index // 4,
        pcie_switch=f"pcie-{index // 2}",
        link_domain=f"{kind.link}-0" if kind.link else "",
        mig_enabled=(modes == ("mig",)) if kind.profiles else None,
        max_clients=kind.max_clients,
        profiles=_profile_facts(kind) if "mig" in modes else (),
    )


def _profile_facts(kind: BoardModel) -> tuple[ProfileFact, ...]:
    return tuple(_profile_fact(p, p.memory_mib) for p in kind.profiles if p.memory_mib is not None)


def _profile_fact(size: BoardProfile, memory_mib: int) -> ProfileFact:
    return ProfileFact(
        name=size.name,
        profile_id=size.profile_id,
        slices=size.memory_slices,
        starts=size.starts,
        memory_mib=memory_mib,
        sm_count=size.sm_count,
        max_instances=size.max_instances,
    )


@cache
def _by_name() -> dict[str, BoardModel]:
    names = {}
    for row in _table()["boards"]:
        for name in (row["id"], *row["aliases"], *row["product_names"]):
            names[name.casefold()] = all_boards()[row["id"]]
    return names


@cache
def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("boards.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _board(row: dict[str, Any]) -> BoardModel:
    toggle = row["mig_mode"] or {}
    return BoardModel(
        id=row["id"],
        vendor=row["vendor"],
        product_names=tuple(row["product_names"]),
        architecture=row["architecture"],
        memory_slices=row["memory_slices"],
        memory_mib=row["memory_mib"],
        bandwidth_gbps=row["bandwidth_gbps"],
        fp16_tflops=row["fp16_tflops"],
        sm_total=row["sm_total"],
        modes=tuple(row["modes"]),
        max_clients=row["max_clients"],
        link=row["link"],
        idle_w=row["idle_w"],
        limit_w=row["limit_w"],
        resets_for_mig=toggle.get("gpu_reset_to_toggle", False),
        mig_survives_reboot=toggle.get("persists_across_reboot", False),
        has_slice_metrics=row["gpm_per_instance_metrics"],
        profiles=tuple(_profile(profile) for profile in row["profiles"]),
        pci_device_ids=tuple(int(text, 16) for text in row["pci_device_ids"]),
        compute_capability=_capability(row["compute_capability"]),
    )


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if minor else None


def _profile(row: dict[str, Any]) -> BoardProfile:
    others: list[int] = row.get("memory_mib_other_drivers", [])
    return BoardProfile(
        name=row["name"],
        nvml_enum=row["nvml_enum"],
        profile_id=row["profile_id"],
        compute_slices=row["compute_slices"],
        memory_slices=row["memory_slices"],
        memory_mib=row["memory_mib"] if row["memory_mib"] is not None else next(iter(others), None),
        sm_count=row["sm_count"],
        max_instances=row["max_instances"],
        starts=tuple(place["start"] for place in row["placements"]),
        copy_engines=row["copy_engines"],
    )
