"""Settings of a device in the simulated library: memory limits by cgroup, compute mode, persistence."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.machine import proc
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.machine.world import SimulatedProcess
from nodeagent.simulation.nvml.session import NvmlSession, changes, reads, refuse

MIB = 1024 * 1024
UNLIMITED = int(pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
DEFAULT, EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = range(4)


class SettingCalls(NvmlSession):
    """Calls that set limits and modes. Nothing of it survives a reboot."""

    @changes
    def nvmlDeviceSetMemoryLimits_v1(self, handle: Any, limits: Any) -> None:
        """Limit what a cgroup may allocate on a device, in bytes: soft is guaranteed, hard is the most.

        Soft 0 with hard UNLIMITED clears it, and so does the end of the cgroup (NVML reference, memory limits).
        """
        device = self._limitable(handle)
        self.require_root()
        path, _ = self._namespace(limits.nameSpace)
        if limits.softLimit > limits.hardLimit:
            raise refuse(errors.INVALID_ARGUMENT)
        if (limits.softLimit, limits.hardLimit) == (0, UNLIMITED):
            device.limits.pop(path, None)
        else:
            device.limits[path] = (limits.softLimit, limits.hardLimit)

    @reads
    def nvmlDeviceGetMemoryLimits_v1(self, handle: Any, limits: Any) -> None:
        """Fill in the limits of a cgroup and what its processes use."""
        device = self._limitable(handle)
        path, inside = self._namespace(limits.nameSpace)
        limits.softLimit, limits.hardLimit = device.limits.get(path, (0, UNLIMITED))
        limits.currentUsed = sum(p.memory_mib for p in inside if p.gpu == device.uuid) * MIB

    @reads
    def nvmlDeviceGetComputeMode(self, handle: Any) -> int:
        """Return who may open the device."""
        return self.part(handle)[0].compute_mode

    @changes
    def nvmlDeviceSetComputeMode(self, handle: Any, mode: int) -> None:
        """Set who may open the device; under MIG only the default is possible."""
        device = self.whole(handle)
        self.require_root()
        if not DEFAULT <= mode <= EXCLUSIVE_PROCESS:
            raise refuse(errors.INVALID_ARGUMENT)
        if mode == EXCLUSIVE_THREAD or (mode != DEFAULT and device.gpu.mig_enabled):
            raise refuse(errors.NOT_SUPPORTED)
        device.compute_mode = mode

    @reads
    def nvmlDeviceGetPersistenceMode(self, handle: Any) -> int:
        """Return whether the driver stays loaded without clients."""
        return int(self.whole(handle).is_persistent)

    @changes
    def nvmlDeviceSetPersistenceMode(self, handle: Any, mode: int) -> None:
        """Let the driver stay loaded without clients."""
        device = self.whole(handle)
        self.require_root()
        if mode not in (0, 1):
            raise refuse(errors.INVALID_ARGUMENT)
        device.is_persistent = bool(mode)

    def _limitable(self, handle: Any) -> NvmlDevice:
        device = self.whole(handle)
        if device.gpu.mig_enabled:
            raise refuse(errors.NOT_SUPPORTED)
        for path in [path for path in device.limits if self.host.in_cgroup(path) is None]:
            del device.limits[path]
        return device

    def _namespace(self, name: Any) -> tuple[str, list[SimulatedProcess]]:
        """Return a cgroup and the processes in it; one that does not exist is INVALID_ARGUMENT."""
        text = name.decode() if isinstance(name, bytes) else str(name or "")
        inside = self.host.in_cgroup(text) if text.startswith(f"{proc.CGROUP_ROOT}/") else None
        if inside is None:
            raise refuse(errors.INVALID_ARGUMENT)
        if self.host.has_dmem and not self.host.reaches_dmem(text):
            raise refuse(errors.NOT_FOUND)
        return proc.below_root(text), inside
