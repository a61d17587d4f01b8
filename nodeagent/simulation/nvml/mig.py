"""MIG calls of the simulated library: mode, profiles, GPU instances."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.protocol.boards import BoardProfile
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml import loads
from nodeagent.simulation.nvml.session import (
    GI,
    GPU,
    NvmlSession,
    changes,
    hand_over,
    hand_over_places,
    reads,
    refuse,
    target,
)

_Placement = pynvml.c_nvmlGpuInstancePlacement_t


class MigCalls(NvmlSession):
    """Calls on devices and GPU instances."""

    @reads
    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        """Return [current, pending]."""
        current, pending = self.whole(handle).gpu.mig_mode()
        return [int(current), int(pending)]

    @changes
    def nvmlDeviceSetMigMode(self, handle: Any, mode: int) -> int:
        """Return the activation status: the call itself succeeds while a busy device keeps its mode."""
        device = self.whole(handle)
        if mode not in (0, 1):
            raise refuse(errors.INVALID_ARGUMENT)
        if device.is_vgpu:
            raise refuse(errors.NOT_SUPPORTED)
        gpu = device.gpu
        gpu.has_work = self.host.work_on(device)
        listeners = sum(listener.hears(device, ~0) for listener in self.host.listeners)
        gpu.clients = device.monitors + device.profilers + listeners
        was = gpu.mig_enabled
        status = gpu.set_mig_mode(bool(mode))
        if gpu.mig_enabled != was:
            device.limits.clear()
            device.compute_mode = 0
        return status

    @reads
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        """Return how many MIG devices there can be, 0 while MIG is off."""
        return self.whole(handle).gpu.max_mig_device_count()

    @reads
    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, profile: int, version: int = 2) -> Any:
        """Return a size by its enum; works with MIG off."""
        device = self.whole(handle)
        found = device.gpu.profile_info(profile)
        if version == 2:
            info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
            info.name = f"MIG {found.name}".encode()
        elif version == 1:
            info = pynvml.c_nvmlGpuInstanceProfileInfo_t()
        else:
            raise refuse(errors.FUNCTION_NOT_FOUND)
        _fill(info, device, found)
        return info

    nvmlDeviceGetGpuInstanceProfileInfoV = nvmlDeviceGetGpuInstanceProfileInfo

    @reads
    def nvmlDeviceGetGpuInstancePossiblePlacements(
        self, handle: Any, profile_id: int, placements: Any, count: Any
    ) -> int:
        """Write all legal places into an array, or their number alone where no array is given."""
        legal = self.whole(handle).gpu.possible_placements(profile_id)
        hand_over_places(legal, placements, _Placement, count)
        return 0

    @reads
    def nvmlDeviceGetGpuInstanceRemainingCapacity(self, handle: Any, profile_id: int) -> int:
        """Return how many more instances of a size fit."""
        return self.whole(handle).gpu.remaining_capacity(profile_id)

    @changes
    def nvmlDeviceCreateGpuInstance(self, handle: Any, profile_id: int) -> Any:
        """Make an instance wherever there is room."""
        device = self.whole(handle)
        self._require_unheld(device)
        return self.handle(GI, device, device.gpu.create_anywhere(profile_id))

    @changes
    def nvmlDeviceCreateGpuInstanceWithPlacement(self, handle: Any, profile_id: int, placement: Any) -> Any:
        """Make an instance at exactly this place; the place is handed over by address."""
        device = self.whole(handle)
        place = target(placement, _Placement)
        self._require_unheld(device)
        known = next((p for p in device.board.profiles if p.profile_id == profile_id), None)
        if device.gpu.mig_enabled and known is not None and place.size != known.memory_slices:
            raise refuse(errors.INVALID_ARGUMENT)
        return self.handle(GI, device, device.gpu.create_gpu_instance(profile_id, place.start))

    @changes
    def nvmlGpuInstanceDestroy(self, instance: Any) -> int:
        """Remove an instance that has neither compute instance nor process."""
        device, part = self.instance(instance)
        device.gpu.destroy_gpu_instance(part, is_busy=bool(loads.on(self.host, device, part.id)))
        self.forget(GI, device, part)
        return 0

    @reads
    def nvmlDeviceGetGpuInstances(self, handle: Any, profile_id: int, instances: Any, count: Any) -> int:
        """Write the instances of one size into an array, half-made ones too."""
        device = self.whole(handle)
        found = [self.handle(GI, device, part) for part in device.gpu.gpu_instances(profile_id)]
        hand_over(found, instances, pynvml.c_nvmlGpuInstance_t, count)
        return 0

    @reads
    def nvmlDeviceGetGpuInstanceById(self, handle: Any, gi_id: int) -> Any:
        """Return the handle of an instance."""
        device = self.whole(handle)
        return self.handle(GI, device, device.gpu.gpu_instance_by_id(gi_id))

    @reads
    def nvmlGpuInstanceGetInfo(self, instance: Any) -> Any:
        """Return id, size and place of an instance."""
        device, part = self.instance(instance)
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        info.device = self.handle(GPU, device)
        info.id, info.profileId = part.id, part.profile.profile_id
        info.placement.start, info.placement.size = part.start, part.profile.memory_slices
        return info

    def _require_unheld(self, device: NvmlDevice) -> None:
        """A profiler that holds the device keeps instances from being made; other refusals come first."""
        if device.is_vgpu:
            raise refuse(errors.NOT_SUPPORTED)
        if device.profilers and device.gpu.mig_enabled and self.host.is_root:
            raise refuse(errors.IN_USE)


def _fill(info: Any, device: NvmlDevice, profile: BoardProfile) -> None:
    info.id, info.isP2pSupported = profile.profile_id, 0
    info.sliceCount, info.instanceCount = profile.compute_slices, profile.max_instances
    info.multiprocessorCount = device.sms_of(profile)
    info.copyEngineCount = profile.copy_engines or profile.compute_slices
    info.memorySizeMB = device.memory_of(profile)
