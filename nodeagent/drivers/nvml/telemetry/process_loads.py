"""Memory and load per process, as a device lists them: how shares of one device are told apart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers.errors import GPU_IS_LOST, NOT_FOUND
from nodeagent.drivers.nvml.library.figures import LostError, figure

LISTS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
# Samples of the last second before the newest one count too: the device's own buffer turns slower than we read.
WINDOW_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """A device's processes: bytes by pid (None: not told), percent of its SMs' time by pid (None: no figures)."""

    bytes_of: dict[int, int | None]
    sm_of: dict[int, float] | None
    next_since_us: int

    def memory(self, pids: Collection[int]) -> int | None:
        """Return the bytes that these processes use together, None when one of them is not told."""
        values = [self.bytes_of[pid] for pid in pids if pid in self.bytes_of]
        return None if None in values else sum(value for value in values if value is not None)

    def sm_percent(
        self, pids: Collection[int], *, is_mps: bool, device_percent: float | None
    ) -> float | None:
        """Return how much of the device's time these processes took.

        A device names only processes that did something, so one that is not named was idle. MPS may book the work
        of its clients on its server: then none of them is named while the device is busy, and that is unknown.
        """
        if self.sm_of is None:
            return None
        named = [self.sm_of[pid] for pid in pids if pid in self.sm_of]
        if is_mps and not named and any(pid in self.bytes_of for pid in pids) and device_percent != 0:
            return None
        return min(100.0, sum(named))


def load_of(library: Any, handle: Any, since_us: int) -> ProcessLoad | None:
    """Return the processes of a device, None when it does not list them. Raises LostError."""
    found: dict[int, int | None] = {}
    is_listed = False
    for call in LISTS:
        rows = figure(library, call, handle)
        is_listed = is_listed or rows is not None
        for row in rows or ():
            # A process with compute and graphics is in two lists; one of them may not tell its memory.
            used, pid = row.usedGpuMemory, int(row.pid)
            found[pid] = found.get(pid) if used is None else int(used)
    if not is_listed:
        return None
    samples = _samples(library, handle, since_us)
    newest = max((int(row.timeStamp) for row in samples or ()), default=0)
    load = None if samples is None else _latest(samples)
    return ProcessLoad(found, load, max(since_us, newest - WINDOW_US))


def _samples(library: Any, handle: Any, since_us: int) -> Any:
    """Return the device's samples per process; none may come as an error that says "success" or "not found"."""
    call = getattr(library, "nvmlDeviceGetProcessUtilization", None)
    if call is None:
        return None
    try:
        return call(handle, since_us)
    except library.NVMLError as no:
        code = getattr(no, "value", None)
        if code == GPU_IS_LOST:
            raise LostError("nvmlDeviceGetProcessUtilization") from no
        return [] if code in (0, NOT_FOUND) else None


def _latest(samples: Any) -> dict[int, float]:
    latest: dict[int, Any] = {}
    for row in samples:
        pid = int(row.pid)
        if pid not in latest or row.timeStamp > latest[pid].timeStamp:
            latest[pid] = row
    return {pid: float(row.smUtil) for pid, row in latest.items()}
