"""What NVML says about a device: identity, and the instances that are seen without root. Unknown stays None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodeagent.drivers.nvml.library.values import MIB
from nodeagent.drivers.nvml.library.values import text as text
from nodeagent.drivers.nvml.mig.profiles import MigSizes
from nodeagent.protocol.boards import BoardModel, UnknownBoardError, all_boards, board
from nodeagent.protocol.messages import DeviceFact, PartitionFact

CORES_PER_SM_64 = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
NVIDIA = 0x10DE


def ask(nvml: Any, call: str, *args: Any) -> Any:
    """Return the answer of one NVML call, None when it fails or the installed library lacks it."""
    function: Callable[..., Any] | None = getattr(nvml, call, None)
    if function is None:
        return None
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def board_of(nvml: Any, handle: Any) -> BoardModel | None:
    """Return the board of a device: by its PCI id, which never changes, else by its name; None when unknown."""
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    number = int(getattr(pci, "pciDeviceId", 0) or 0)
    if number & 0xFFFF == NVIDIA:
        for known in all_boards().values():
            if number >> 16 in known.pci_device_ids:
                return known
    try:
        return board(text(ask(nvml, "nvmlDeviceGetName", handle)))
    except UnknownBoardError:
        return None


def device_fact(nvml: Any, handle: Any, index: int, sizes: MigSizes) -> DeviceFact | None:
    """Return a device's identity without modes, None when it does not even tell its UUID and memory."""
    uuid, memory = text(ask(nvml, "nvmlDeviceGetUUID", handle)), ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    if not uuid or memory is None:
        return None
    known, pci = board_of(nvml, handle), ask(nvml, "nvmlDeviceGetPciInfo", handle)
    return DeviceFact(
        uuid=uuid,
        index=index,
        vendor="nvidia",
        model=known.id if known else text(ask(nvml, "nvmlDeviceGetName", handle)) or "unknown",
        memory_mib=memory.total // MIB,
        grid=_grid(sizes, known),
        modes=(),
        sm_count=_sm_count(nvml, handle),
        pci_bus_id=text(pci.busId) if pci is not None else "",
        serial=text(ask(nvml, "nvmlDeviceGetSerial", handle)),
        numa_node=_numa(ask(nvml, "nvmlDeviceGetNumaNodeId", handle)),
        max_clients=known.max_clients if known else 48,
        profiles=sizes.facts,
    )


def instance_facts(nvml: Any, handle: Any, fact: DeviceFact) -> list[PartitionFact]:
    """Return the MIG devices that a process without root can see; their places it cannot: they count as all."""
    found = []
    for index in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        slice_handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if slice_handle is not None:
            uuid = text(ask(nvml, "nvmlDeviceGetUUID", slice_handle)) or f"{fact.uuid}/unknown"
            found.append(PartitionFact(uuid, fact.uuid, "unknown", 0, fact.grid))
    return found


def _numa(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 1023 else None


def _sm_count(nvml: Any, handle: Any) -> int | None:
    """Return the number of SMs: CUDA cores over cores per SM of this generation."""
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if not cores or capability is None:
        return None
    return int(cores) // (64 if tuple(capability) in CORES_PER_SM_64 else 128)


def _grid(sizes: MigSizes, known: BoardModel | None) -> int:
    if sizes.facts:
        return max(start + p.slices for p in sizes.facts for start in p.starts)
    return known.memory_slices if known and known.profiles else 1
