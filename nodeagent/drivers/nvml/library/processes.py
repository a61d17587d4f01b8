"""Processes as devices list them, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.values import mib

COMPUTE: Final = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS: Final = "nvmlDeviceGetGraphicsRunningProcesses"
MPS: Final = "nvmlDeviceGetMPSComputeRunningProcesses"

Read = Callable[[str], str]


def running(calls: NvmlCalls, handle: Any, read: Read) -> list[ProcessFact]:
    """Return the processes on a device or a MIG device, each once; raises NvmlLikeError where it does not tell."""
    listed = [(False, process) for process in _listed(calls, handle, COMPUTE, must=True)]
    listed += [(False, process) for process in _listed(calls, handle, GRAPHICS)]
    listed += [(True, process) for process in _listed(calls, handle, MPS)]
    found: dict[int, ProcessFact] = {}
    for is_mps, process in listed:
        pid, memory = int(process.pid), mib(process.usedGpuMemory)
        known = found.get(pid)
        if known is not None:
            is_mps = is_mps or known.is_mps
            memory = known.memory_mib if memory is None else max(memory, known.memory_mib or 0)
        found[pid] = ProcessFact(pid, memory, known.name if known else name_of(read, pid), is_mps)
    return list(found.values())


def name_of(read: Read, pid: int) -> str:
    """Return a program's name, "" where it is unknown."""
    try:
        return read(f"/proc/{pid}/comm").strip()
    except (OSError, ValueError):
        return ""


def _listed(calls: NvmlCalls, handle: Any, name: str, *, must: bool = False) -> list[Any]:
    try:
        return list(calls.do(name, handle, doing="listing processes") or [])
    except NvmlLikeError as no:
        if no.code == errors.NOT_FOUND:
            return []
        if not must and no.code in (errors.NOT_SUPPORTED, errors.FUNCTION_NOT_FOUND):
            return []
        raise
