"""What NVML says about a card: identity, MIG sizes, existing instances, health. Unknown stays None."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from nodeagent.drivers import errors
from nodeagent.protocol.boards import Board, UnknownBoardError, board
from nodeagent.protocol.messages import DeviceFact, HealthFact, PartitionFact, ProfileFact

MIB = 1024 * 1024
PROFILE_ENUMS = range(18)
CORES_PER_SM_64 = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
RECOVERY = {1: "reset the GPU", 2: "reboot the node", 3: "drain peers", 4: "drain and reset the GPU"}


def ask(nvml: Any, call: str, *args: Any) -> Any:
    """Return the answer of one NVML call, None when it fails or the installed library lacks it."""
    function: Callable[..., Any] | None = getattr(nvml, call, None)
    if function is None:
        return None
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def device_fact(nvml: Any, handle: Any, index: int) -> DeviceFact | None:
    """Return a card's identity, None when it does not even tell its UUID."""
    uuid, memory = text(ask(nvml, "nvmlDeviceGetUUID", handle)), ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    if not uuid or memory is None:
        return None
    product = text(ask(nvml, "nvmlDeviceGetName", handle))
    known, mig = _board(product), ask(nvml, "nvmlDeviceGetMigMode", handle)
    profiles = _profiles(nvml, handle, known)
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    return DeviceFact(
        uuid=uuid,
        index=index,
        vendor="nvidia",
        model=known.id if known else product or "unknown",
        memory_mib=memory.total // MIB,
        grid=_grid(profiles, known),
        modes=() if mig is not None and mig[0] else ("exclusive",),
        sm_count=_sm_count(nvml, handle),
        pci_bus_id=text(pci.busId) if pci is not None else "",
        serial=text(ask(nvml, "nvmlDeviceGetSerial", handle)),
        numa_node=_numa(ask(nvml, "nvmlDeviceGetNumaNodeId", handle)),
        mig_enabled=None if mig is None else bool(mig[0]),
        profiles=profiles,
    )


def instance_facts(nvml: Any, handle: Any, fact: DeviceFact) -> list[PartitionFact]:
    """Return the MIG instances that exist; one whose place cannot be read counts as the whole card."""
    found = []
    for index in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        slice_handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if slice_handle is not None:
            found.append(_instance(nvml, handle, slice_handle, fact))
    return found


def health_of(nvml: Any, uuid: str, handle: Any) -> list[HealthFact]:
    """Return what a card complains about."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as no:
        if getattr(no, "value", None) == errors.GPU_IS_LOST:
            return [HealthFact(uuid, "79", "critical", "the GPU has fallen off the bus")]
    found = []
    rows = ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is not None and rows[3]:
        found.append(
            HealthFact(uuid, "row_remap_failed", "critical", "memory repair failed: replace the card")
        )
    elif rows is not None and rows[2]:
        found.append(HealthFact(uuid, "row_remap_pending", "warning", "memory repair waits for a GPU reset"))
    action = _recovery_action(nvml, handle)
    if action in RECOVERY:
        found.append(
            HealthFact(uuid, "recovery_action", "critical", f"the driver asks to {RECOVERY[action]}")
        )
    return found


def text(value: Any) -> str:
    """Return text from what the binding gives: str, bytes or nothing."""
    if isinstance(value, bytes):
        return value.split(b"\x00", 1)[0].decode(errors="replace")
    return "" if value is None else str(value)


def _board(product: str) -> Board | None:
    try:
        return board(product)
    except UnknownBoardError:
        return None


def _numa(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 1023 else None


def _sm_count(nvml: Any, handle: Any) -> int | None:
    """Return the number of SMs: CUDA cores over cores per SM of this generation."""
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if not cores or capability is None:
        return None
    return int(cores) // (64 if tuple(capability) in CORES_PER_SM_64 else 128)


def _grid(profiles: tuple[ProfileFact, ...], known: Board | None) -> int:
    if profiles:
        return max(start + p.slices for p in profiles for start in p.starts)
    return known.memory_slices if known and known.profiles else 1


def _profiles(nvml: Any, handle: Any, known: Board | None) -> tuple[ProfileFact, ...]:
    """Return the MIG sizes the driver offers; works with MIG off. Sizes without known places are left out."""
    found = []
    for enum in PROFILE_ENUMS:
        info = ask(nvml, "nvmlDeviceGetGpuInstanceProfileInfo", handle, enum)
        places = [] if info is None else _places(nvml, handle, info, known)
        if places:
            found.append(_profile(info, places, known))
    return tuple(found)


def _profile(info: Any, places: list[tuple[int, int]], known: Board | None) -> ProfileFact:
    usual = next((p.name for p in known.profiles if p.profile_id == info.id), "") if known else ""
    name = text(getattr(info, "name", None)).removeprefix("MIG ") or usual or f"profile-{info.id}"
    return ProfileFact(
        name=name,
        profile_id=int(info.id),
        slices=places[0][1],
        starts=tuple(start for start, _ in places),
        memory_mib=int(info.memorySizeMB),
        sm_count=int(info.multiprocessorCount) or None,
        max_instances=int(info.instanceCount),
    )


def _places(nvml: Any, handle: Any, info: Any, known: Board | None) -> list[tuple[int, int]]:
    """Return (start, size) of a profile: from the driver, which wants root, else from the table of boards."""
    number = ctypes.c_uint(0)
    try:
        ask_places = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
        ask_places(handle, info.id, None, ctypes.byref(number))
        rows = (nvml.c_nvmlGpuInstancePlacement_t * number.value)()
        ask_places(handle, info.id, rows, ctypes.byref(number))
        return [(int(row.start), int(row.size)) for row in rows]
    except (nvml.NVMLError, AttributeError):
        usual = next((p for p in known.profiles if p.profile_id == info.id), None) if known else None
        return [] if usual is None else [(start, usual.memory_slices) for start in usual.starts]


def _instance(nvml: Any, parent: Any, handle: Any, fact: DeviceFact) -> PartitionFact:
    gi_id = ask(nvml, "nvmlDeviceGetGpuInstanceId", handle)
    gi = None if gi_id is None else ask(nvml, "nvmlDeviceGetGpuInstanceById", parent, gi_id)
    info = None if gi is None else ask(nvml, "nvmlGpuInstanceGetInfo", gi)
    uuid = text(ask(nvml, "nvmlDeviceGetUUID", handle)) or f"{fact.uuid}/unknown"
    if info is None:
        return PartitionFact(uuid, fact.uuid, "unknown", 0, fact.grid)
    name = next(
        (p.name for p in fact.profiles if p.profile_id == info.profileId), f"profile-{info.profileId}"
    )
    return PartitionFact(uuid, fact.uuid, name, int(info.placement.start), int(info.placement.size))


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    values = None if field is None else ask(nvml, "nvmlDeviceGetFieldValues", handle, [field])
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)
