"""Compute instances and MIG devices of the simulated library."""

from __future__ import annotations

from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.hardware import COMPUTE_COUNTS, ComputeInstance, GpuInstance
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml import loads
from nodeagent.simulation.nvml.session import (
    CI,
    GI,
    GPU,
    MIG,
    NvmlSession,
    changes,
    hand_over,
    hand_over_places,
    reads,
    refuse,
    target,
)

_Placement = pynvml.c_nvmlComputeInstancePlacement_t

# Enum of a compute instance profile to its slices; the driver's own id is the same number (NVIDIA MIG guide, -lcip).
WIDTHS = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
PROFILE_COUNT = 9
SHARED_ENGINES = 0


class ComputeCalls(NvmlSession):
    """Calls on compute instances and on the MIG devices that they are."""

    @reads
    def nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, instance: Any, profile: int, engine: int, version: int = 2
    ) -> Any:
        """Return a width by its enum; engines are always shared."""
        device, part = self.instance(instance)
        if not 0 <= profile < PROFILE_COUNT or engine != SHARED_ENGINES:
            raise refuse(errors.INVALID_ARGUMENT)
        if not _is_offered(part, profile):
            raise refuse(errors.NOT_SUPPORTED)
        width = WIDTHS[profile]
        if version == 2:
            info = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t()
            info.name = f"MIG {_name(part, width)}".encode()
        elif version == 1:
            info = pynvml.c_nvmlComputeInstanceProfileInfo_t()
        else:
            raise refuse(errors.FUNCTION_NOT_FOUND)
        info.id, info.sliceCount = profile, width
        info.instanceCount = COMPUTE_COUNTS[part.profile.compute_slices][width]
        info.multiprocessorCount = device.sms_of(part.profile) * width // part.profile.compute_slices
        info.sharedCopyEngineCount = part.profile.copy_engines or part.profile.compute_slices
        return info

    nvmlGpuInstanceGetComputeInstanceProfileInfoV = nvmlGpuInstanceGetComputeInstanceProfileInfo

    @reads
    def nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        self, instance: Any, profile_id: int, placements: Any, count: Any
    ) -> int:
        """Write all legal places of a width, or their number alone where no array is given."""
        device, part = self.instance(instance)
        width = _width(part, profile_id)
        legal = [(start, width) for start in device.gpu.compute_starts(part, width)]
        hand_over_places(legal, placements, _Placement, count)
        return 0

    @reads
    def nvmlGpuInstanceGetComputeInstanceRemainingCapacity(self, instance: Any, profile_id: int) -> int:
        """Return how many more compute instances of a width fit."""
        device, part = self.instance(instance)
        return len(device.gpu.free_compute_starts(part, _width(part, profile_id)))

    @changes
    def nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile_id: int) -> Any:
        """Make a compute instance at the first free place."""
        device, part = self.instance(instance)
        ci_id = device.gpu.create_compute_instance(part, _width(part, profile_id))
        return self.handle(CI, device, part.compute[ci_id])

    @changes
    def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        self, instance: Any, profile_id: int, placement: Any
    ) -> Any:
        """Make a compute instance at exactly this place."""
        device, part = self.instance(instance)
        place, width = target(placement, _Placement), _width(part, profile_id)
        if place.size != width:
            raise refuse(errors.INVALID_ARGUMENT)
        ci_id = device.gpu.create_compute_instance(part, width, place.start)
        return self.handle(CI, device, part.compute[ci_id])

    @changes
    def nvmlComputeInstanceDestroy(self, instance: Any) -> int:
        """Remove a compute instance; IN_USE while a process is on it."""
        device, part = self.compute(instance)
        is_busy = bool(loads.on(self.host, device, part.gi.id, part.id))
        device.gpu.destroy_compute_instance(part.gi, part.id, is_busy=is_busy)
        self.forget(CI, device, part)
        self.forget(MIG, device, part)
        return 0

    @reads
    def nvmlGpuInstanceGetComputeInstances(
        self, instance: Any, profile_id: int, instances: Any, count: Any
    ) -> int:
        """Write the compute instances of one width into an array."""
        device, part = self.instance(instance)
        width = _width(part, profile_id)
        found = [self.handle(CI, device, c) for c in part.compute.values() if c.slices == width]
        hand_over(found, instances, pynvml.c_nvmlComputeInstance_t, count)
        return 0

    @reads
    def nvmlGpuInstanceGetComputeInstanceById(self, instance: Any, ci_id: int) -> Any:
        """Return the handle of a compute instance."""
        device, part = self.instance(instance)
        if ci_id not in part.compute:
            raise refuse(errors.NOT_FOUND)
        return self.handle(CI, device, part.compute[ci_id])

    @reads
    def nvmlComputeInstanceGetInfo(self, instance: Any) -> Any:
        """Return id, width and place; ``device`` is the handle of the MIG device."""
        device, part = self.compute(instance)
        info = pynvml.c_nvmlComputeInstanceInfo_t()
        info.device, info.gpuInstance = self.handle(MIG, device, part), self.handle(GI, device, part.gi)
        info.id, info.profileId = part.id, _profile_id(part)
        info.placement.start, info.placement.size = part.start, part.slices
        return info

    nvmlComputeInstanceGetInfo_v2 = nvmlComputeInstanceGetInfo

    @reads
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        """Return a MIG device by its sparse index; a gap is NOT_FOUND."""
        device = self.whole(handle)
        return self.handle(MIG, device, device.gpu.mig_device_by_index(index))

    @reads
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any:
        """Return the device of a MIG device."""
        return self.handle(GPU, self._mig(handle)[0])

    @reads
    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        """Return the id of a MIG device's GPU instance."""
        return self._mig(handle)[1].gi.id

    @reads
    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        """Return the id of a MIG device's compute instance."""
        return self._mig(handle)[1].id

    @reads
    def nvmlDeviceGetAttributes_v2(self, handle: Any) -> Any:
        """Return what a MIG device has: SMs, engines, slices, memory."""
        device, part = self._mig(handle)
        profile, info = part.gi.profile, pynvml.c_nvmlDeviceAttributes()
        info.multiprocessorCount = device.sms_of(profile) * part.slices // profile.compute_slices
        info.sharedCopyEngineCount = profile.copy_engines or profile.compute_slices
        info.gpuInstanceSliceCount = profile.compute_slices
        info.computeInstanceSliceCount = part.slices
        info.memorySizeMB = device.memory_of(profile)
        return info

    nvmlDeviceGetAttributes = nvmlDeviceGetAttributes_v2

    def _mig(self, handle: Any) -> tuple[NvmlDevice, ComputeInstance]:
        device, part = self.part(handle)
        if part is None:
            raise refuse(errors.INVALID_ARGUMENT)
        return device, part


def _is_offered(part: GpuInstance, profile: int) -> bool:
    return WIDTHS.get(profile) in COMPUTE_COUNTS.get(part.profile.compute_slices, {})


def _width(part: GpuInstance, profile_id: int) -> int:
    if not _is_offered(part, profile_id):
        raise refuse(errors.INVALID_ARGUMENT)
    return WIDTHS[profile_id]


def _profile_id(compute: ComputeInstance) -> int:
    return next(enum for enum, width in WIDTHS.items() if width == compute.slices)


def _name(part: GpuInstance, width: int) -> str:
    """Return the name as listed: the size alone where the compute instance spans it, else with its width first."""
    own = part.profile.name
    return own if width == part.profile.compute_slices else f"{width}c.{own}"
