"""Asking a device for one figure: what it does not tell is None, that it is lost is an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nodeagent.drivers.errors import GPU_IS_LOST


class LostError(Exception):
    """The device has fallen off the bus: nothing that was read from it this time can be trusted."""


@dataclass(frozen=True, slots=True)
class Activity:
    """How busy a device or a slice was, in percent of that device or slice; None is unknown."""

    util: float | None = None
    sm: float | None = None
    tensor: float | None = None
    bandwidth: float | None = None


def figure(library: Any, call: str, *args: Any) -> Any:
    """Return the answer of one NVML call, None when it fails or is missing; raises LostError."""
    function = getattr(library, call, None)
    if function is None:
        return None
    try:
        return function(*args)
    except library.NVMLError as no:
        if getattr(no, "value", None) == GPU_IS_LOST:
            raise LostError(call) from no
        return None


def memory_used(library: Any, handle: Any) -> int | None:
    """Return the bytes in use on a device or a MIG device, without what the driver keeps for itself."""
    version = getattr(library, "nvmlMemory_v2", None)
    memory = None if version is None else figure(library, "nvmlDeviceGetMemoryInfo", handle, version)
    if memory is None:
        memory = figure(library, "nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else int(memory.used)
