"""Start, system and identity calls of the simulated library."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.protocol.uuids import simulated_mig_uuid
from nodeagent.simulation.hardware import ComputeInstance
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml.session import GPU, MIG, UNINITIALIZED, NvmlSession, reads, refuse

# Numbers of nvml.h.
ARCHITECTURES = {"ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
CORES_PER_SM_64 = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
CUDA_VERSION = 13040
BRAND_NVIDIA = 14


def mig_uuid(device: NvmlDevice, compute: ComputeInstance) -> str:
    """Return the UUID of a MIG device: a name made from its place, so the next tenant there gets the same."""
    instance = compute.gi
    profile = instance.profile.name
    if compute.id or compute.slices != instance.profile.compute_slices:
        profile = f"{profile}/{compute.slices}c.{compute.id}"
    return simulated_mig_uuid(device.uuid, profile, instance.start)


class SystemCalls(NvmlSession):
    """Calls about the library, the host and who a device is."""

    def nvmlInit(self) -> None:
        """Open the library; raises the host's ``init_code`` where it has one (9, 12, 18)."""
        self.host.enter("nvmlInit", False)
        if self.host.init_code or self._is_dead:
            raise refuse(self.host.init_code or UNINITIALIZED)
        self.opened += 1

    def nvmlInitWithFlags(self, flags: int) -> None:
        """Open the library."""
        self.nvmlInit()

    @reads
    def nvmlShutdown(self) -> None:
        """Close it once; the last time its handles go."""
        self.opened -= 1
        if not self.opened:
            self.clear()

    def nvmlErrorString(self, code: int) -> str:
        """Return the words for a code."""
        return str(pynvml.NVMLError._errcode_to_string.get(code, f"NVML Error with code {code}"))

    @reads
    def nvmlSystemGetDriverVersion(self) -> str:
        """Return the driver's version."""
        return self.host.driver_version

    @reads
    def nvmlSystemGetNVMLVersion(self) -> str:
        """Return the library's version."""
        return f"13.{self.host.driver_version}"

    @reads
    def nvmlSystemGetCudaDriverVersion(self) -> int:
        """Return the CUDA version that the driver serves, in thousands."""
        return CUDA_VERSION

    nvmlSystemGetCudaDriverVersion_v2 = nvmlSystemGetCudaDriverVersion

    @reads
    def nvmlSystemGetProcessName(self, pid: int) -> str:
        """Return the name of a process, NOT_FOUND when it is gone."""
        process = self.host.world.processes.get(pid)
        if process is None:
            raise refuse(errors.NOT_FOUND)
        return process.name

    @reads
    def nvmlDeviceGetCount(self) -> int:
        """Return the number of devices, lost ones included."""
        return len(self.host.devices)

    nvmlDeviceGetCount_v2 = nvmlDeviceGetCount

    @reads
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        """Return a handle, of a lost device too: it fails later."""
        if not 0 <= index < len(self.host.devices):
            raise refuse(errors.INVALID_ARGUMENT)
        return self.handle(GPU, self.host.devices[index])

    nvmlDeviceGetHandleByIndex_v2 = nvmlDeviceGetHandleByIndex

    @reads
    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Any:
        """Return the handle of a device or of a MIG device."""
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for device in self.host.devices:
            if device.uuid == wanted:
                return self.handle(GPU, device)
            for compute in mig_devices(device) if wanted.startswith("MIG-") else ():
                if mig_uuid(device, compute) == wanted:
                    return self.handle(MIG, device, compute)
        raise refuse(errors.NOT_FOUND)

    @reads
    def nvmlDeviceGetHandleByPciBusId(self, address: str | bytes) -> Any:
        """Return a handle by PCI address, with a domain of four or eight digits."""
        wanted = (address.decode() if isinstance(address, bytes) else address).upper()
        for device in self.host.devices:
            if wanted in (device.bus_id, device.bus_id[4:]):
                return self.handle(GPU, device)
        raise refuse(errors.NOT_FOUND)

    nvmlDeviceGetHandleByPciBusId_v2 = nvmlDeviceGetHandleByPciBusId

    @reads
    def nvmlDeviceGetHandleBySerial(self, serial: str | bytes) -> Any:
        """Return a handle by serial number."""
        wanted = serial.decode() if isinstance(serial, bytes) else serial
        for device in self.host.devices:
            if _serial(device) == wanted:
                return self.handle(GPU, device)
        raise refuse(errors.NOT_FOUND)

    @reads
    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        """Return the UUID of a device or MIG device."""
        device, compute = self.part(handle)
        return device.uuid if compute is None else mig_uuid(device, compute)

    @reads
    def nvmlDeviceGetName(self, handle: Any) -> str:
        """Return the product name, with the profile for a MIG device."""
        device, compute = self.part(handle)
        return device.board.name if compute is None else f"{device.board.name} MIG {compute.gi.profile.name}"

    @reads
    def nvmlDeviceGetSerial(self, handle: Any) -> str:
        """Return the board's serial number."""
        return _serial(self.part(handle)[0])

    @reads
    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        """Return the index of a device, of a MIG device its index on the device."""
        device, compute = self.part(handle)
        return device.index if compute is None else compute.mig_index

    @reads
    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        """Return the N of /dev/nvidiaN."""
        return self.part(handle)[0].minor

    @reads
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        """Return where the device sits and what it is."""
        return pci_info(self.part(handle)[0])

    nvmlDeviceGetPciInfo_v3 = nvmlDeviceGetPciInfo

    @reads
    def nvmlDeviceGetArchitecture(self, handle: Any) -> int:
        """Return the number of the architecture."""
        number = ARCHITECTURES.get(self.part(handle)[0].board.architecture)
        return int(pynvml.NVML_DEVICE_ARCH_UNKNOWN) if number is None else number

    @reads
    def nvmlDeviceGetBrand(self, handle: Any) -> int:
        """Return the number of the brand."""
        self.part(handle)
        return BRAND_NVIDIA

    @reads
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        """Return (major, minor)."""
        known = self.part(handle)[0].board.compute_capability
        if known is None:
            raise refuse(errors.NOT_SUPPORTED)
        return known

    @reads
    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> int:
        """Return the CUDA cores of the device: SMs by the cores of one in its generation."""
        device = self.whole(handle)
        if not device.sm_total:
            raise refuse(errors.NOT_SUPPORTED)
        return device.sm_total * (64 if device.board.compute_capability in CORES_PER_SM_64 else 128)

    @reads
    def nvmlDeviceGetVirtualizationMode(self, handle: Any) -> int:
        """Return whether the host is bare (0), a guest that owns the device (1) or has a virtual one (2)."""
        device = self.part(handle)[0]
        if device.is_vgpu:
            return int(pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        is_guest = device.gpu.is_passthrough
        return int(pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH if is_guest else 0)

    @reads
    def nvmlDeviceIsMigDeviceHandle(self, handle: Any) -> Any:
        """Return 1 for a MIG device (as the c_uint that the real wrapper gives)."""
        return ctypes.c_uint(self.part(handle)[1] is not None)


def mig_devices(device: NvmlDevice) -> list[ComputeInstance]:
    """Return the compute instances of a device, in the order they were made."""
    return [c for i in device.gpu.instances.values() for c in i.compute.values()]


def pci_info(device: NvmlDevice) -> Any:
    """Return a device's place as NVML's structure."""
    info = pynvml.nvmlPciInfo_t()
    bus = device.bus_id
    info.busId, info.busIdLegacy = bus.encode(), bus[4:].encode()
    info.domain, info.bus, info.device = int(bus[:8], 16), int(bus[9:11], 16), int(bus[12:14], 16)
    info.pciDeviceId = device.pci_device_id
    return info


def _serial(device: NvmlDevice) -> str:
    return device.uuid[-12:].upper()
