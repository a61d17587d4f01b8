"""Processes of the simulated library: who is on a device or a MIG device, and how busy."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.hardware import ComputeInstance
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.machine.world import SimulatedProcess
from nodeagent.simulation.nvml import loads
from nodeagent.simulation.nvml.session import NvmlSession, reads, refuse

MIB = 1024 * 1024
NO_INSTANCE = 0xFFFFFFFF


class ProcessCalls(NvmlSession):
    """Calls that list processes: a device's handle shows all of them (MIG: to root only), a MIG device its own."""

    @reads
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """Return processes that compute without MPS."""
        return self._listed(handle, lambda p: not p.is_mps and not p.is_graphics)

    nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses

    @reads
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        """Return processes that draw."""
        return self._listed(handle, lambda p: p.is_graphics)

    nvmlDeviceGetGraphicsRunningProcesses_v3 = nvmlDeviceGetGraphicsRunningProcesses

    @reads
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """Return processes that compute through an MPS server."""
        return self._listed(handle, lambda p: p.is_mps)

    nvmlDeviceGetMPSComputeRunningProcesses_v3 = nvmlDeviceGetMPSComputeRunningProcesses

    @reads
    def nvmlDeviceGetProcessUtilization(self, handle: Any, last_ts: int) -> list[Any]:
        """Return samples newer than ``last_ts`` (microseconds).

        As the real wrapper does, it raises instead of an empty list: NVMLError with value 0 where there is no
        process at all, NOT_FOUND where no sample is newer.
        """
        device, _ = self.part(handle)
        device.gpu.utilization_rates()
        inside, now_us = loads.on(self.host, device), self.host.clock() // 1000
        if not inside:
            raise refuse(0)
        if now_us <= last_ts:
            raise refuse(errors.NOT_FOUND)
        return [self._sample(process, now_us) for process in inside]

    @reads
    def nvmlDeviceGetAccountingMode(self, handle: Any) -> int:
        """Return 0, accounting is off; NOT_SUPPORTED with MIG."""
        self.part(handle)[0].gpu.utilization_rates()
        return 0

    def _listed(self, handle: Any, is_wanted: Any) -> list[Any]:
        device, part = self.part(handle)
        if part is None and device.gpu.mig_enabled and not self.host.is_root:
            raise refuse(errors.NO_PERMISSION)
        found = loads.part_of(self.host, device, part)
        return [_friendly(device, part, process) for process in found if is_wanted(process)]

    def _sample(self, process: SimulatedProcess, now_us: int) -> Any:
        sample = pynvml.c_nvmlProcessUtilizationSample_t()
        busy = loads.of_process(self.host, process, self.host.now_s())
        sample.pid, sample.timeStamp = process.pid, now_us
        sample.smUtil, sample.memUtil = round(busy), round(busy * loads.DRAM_PART)
        return sample


def _friendly(device: NvmlDevice, part: ComputeInstance | None, process: SimulatedProcess) -> Any:
    """Return what the binding makes of the C structure: a plain object."""
    is_sliced = device.gpu.mig_enabled and process.gi is not None
    return pynvml.nvmlFriendlyObject(
        {
            "pid": process.pid,
            "usedGpuMemory": process.memory_mib * MIB,
            "gpuInstanceId": process.gi if is_sliced else NO_INSTANCE,
            "computeInstanceId": process.ci if is_sliced else NO_INSTANCE,
        }
    )
