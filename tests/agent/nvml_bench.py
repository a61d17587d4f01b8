"""A simulated host with a session of its NVML, and the codes that it answers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
INSUFFICIENT_SIZE, TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 7, 10, 13, 15, 16
IN_USE, INSUFFICIENT_RESOURCES = 19, 23
G1, G1ME, G2, G3, G4, G7 = 19, 20, 14, 9, 5, 0
MIB = 1024 * 1024


class Bench:
    """A host with one device and a session on it."""

    def __init__(self, model: str = "h100-80gb", *, mig: bool = True, count: int = 1, **knobs: Any) -> None:
        self.now_ns = 1_000_000_000
        self.host = SimulatedHost([model] * count, clock=lambda: self.now_ns, **knobs)
        for device in self.host.devices if mig else ():
            self.host.switch_mig(device.index)
        self.nvml = SimulatedNvml(self.host)
        self.nvml.nvmlInit()
        self.gpu = self.nvml.nvmlDeviceGetHandleByIndex(0)

    def create(self, profile: int, start: int, size: int | None = None) -> Any:
        sizes = {p.profile_id: p.memory_slices for p in self.host.devices[0].board.profiles}
        place = self.nvml.c_nvmlGpuInstancePlacement_t(start, size or sizes.get(profile, 1))
        return self.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(self.gpu, profile, ctypes.byref(place))

    def slice(self, profile: int, start: int, width: int = 0) -> tuple[Any, Any, Any]:
        """Return handles of a new GPU instance, its compute instance and its MIG device."""
        gi = self.create(profile, start)
        ci = self.nvml.nvmlGpuInstanceCreateComputeInstance(gi, width)
        info = self.nvml.nvmlComputeInstanceGetInfo(ci)
        return gi, ci, info.device

    def listen(self, kinds: int = pynvml.nvmlEventTypeXidCriticalError) -> Any:
        """Return an event set that hears the first device."""
        events = self.nvml.nvmlEventSetCreate()
        self.nvml.nvmlDeviceRegisterEvents(self.gpu, kinds, events)
        return events

    def listed(self, profile: int, room: int = 7) -> list[int]:
        table, count = (self.nvml.c_nvmlGpuInstance_t * room)(), ctypes.c_uint()
        self.nvml.nvmlDeviceGetGpuInstances(self.gpu, profile, table, ctypes.byref(count))
        return [self.nvml.nvmlGpuInstanceGetInfo(table[n]).placement.start for n in range(count.value)]


def code_of(call: Callable[..., Any], *args: Any) -> int:
    with pytest.raises(pynvml.NVMLError) as refused:
        call(*args)
    return int(refused.value.value)
