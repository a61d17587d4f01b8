"""Devices that answer what a test sets on them, behind the names of pynvml; everything else is NOT_SUPPORTED."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1024 * 1024
WHOLE = 0xFFFFFFFF


def code(number: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(number)


@dataclass(eq=False)
class Device:
    """One device or MIG device and its figures; None is not supported."""

    uuid: str
    util: int | None = None
    used_mib: int | None = 0
    power_mw: int | None = None
    limit_mw: int | None = None
    heat: int | None = None
    energy_mj: int | None = None
    has_gpm: bool = False
    gpm: dict[int | None, tuple[float, ...]] = field(default_factory=dict)
    running: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    mps: list[SimpleNamespace] = field(default_factory=list)
    load: Any = None
    rows: tuple[int, int, int, int] | None = None
    recovery: int | None = None
    ecc: int | None = None
    reasons: int | None = None
    events: int = 0xB
    starts: dict[int, int] = field(default_factory=dict)
    is_lost: bool = False


def process(pid: int, mib: int | None, gi: int = WHOLE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB, gpuInstanceId=gi)


def load(pid: int, sm: int, at_us: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=sm, memUtil=0, timeStamp=at_us)


class Devices:
    """The library. ``calls`` counts by name, ``buffers`` are the GPM samples that nobody has freed."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *devices: Device) -> None:
        self.devices = devices
        self.calls: dict[str, int] = {}
        self.buffers: set[int] = set()
        self.waiting: deque[Any] = deque()
        self.woken = threading.Event()
        self.sets: list[set[Device]] = []
        self.missing: set[str] = set()
        self._next = 0

    def handles(self) -> dict[str, Device]:
        return {device.uuid: device for device in self.devices}

    def __getattr__(self, name: str) -> Any:
        answer = _ANSWERS.get(name)
        if answer is None:
            constant = getattr(pynvml, name)
            if not callable(constant) or isinstance(constant, type):
                return constant

        def call(*args: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name in self.missing or answer is None:
                raise code(13 if name in self.missing else 3)
            if args and isinstance(args[0], Device) and args[0].is_lost:
                raise code(15)
            value = answer(self, *args)
            if value is None:
                raise code(3)
            return value

        return call

    def alloc(self) -> SimpleNamespace:
        self._next += 1
        self.buffers.add(self._next)
        return SimpleNamespace(id=self._next, taken=None)

    def free(self, buffer: SimpleNamespace) -> int:
        self.buffers.remove(buffer.id)
        return 0

    def sample(self, device: Device, gi: int | None, buffer: SimpleNamespace) -> SimpleNamespace | None:
        if gi not in device.gpm:
            return None
        buffer.taken = device.gpm[gi]
        return buffer

    def compare(self, query: SimpleNamespace) -> SimpleNamespace:
        assert query.sample1.id != query.sample2.id
        for metric, value in zip(query.metrics, query.sample2.taken, strict=False):
            metric.value = value
        return query

    def event_set(self) -> set[Device]:
        self.sets.append(set())
        return self.sets[-1]

    def register(self, device: Device, mask: int, chosen: set[Device]) -> int:
        assert mask
        assert mask & ~device.events == 0
        chosen.add(device)
        return 0

    def free_set(self, chosen: set[Device]) -> int:
        self.sets = [one for one in self.sets if one is not chosen]
        return 0

    def wait(self, chosen: set[Device], ms: int) -> Any:
        if any(device.is_lost for device in chosen):
            raise code(15)
        if not self.waiting:
            self.woken.wait(ms / 1000)
            self.woken.clear()
        if not self.waiting:
            raise code(10)
        event = self.waiting.popleft()
        if isinstance(event, Exception):
            raise event
        return event

    def xid(self, device: Device, number: int, gi: int = WHOLE) -> None:
        """Let the device say something; wakes who waits."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self.waiting.append(
            SimpleNamespace(
                device=device, eventType=kind, eventData=number, gpuInstanceId=gi, computeInstanceId=WHOLE
            )
        )
        self.woken.set()


def _query() -> SimpleNamespace:
    metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
    return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)


def _processes(device: Device, since: int) -> Any:
    if isinstance(device.load, Exception):
        raise device.load
    return device.load


def _instance(device: Device, gi: int) -> SimpleNamespace:
    if gi not in device.starts:
        raise code(6)
    return SimpleNamespace(placement=SimpleNamespace(start=device.starts[gi], size=1))


def _recovery(device: Device) -> list[SimpleNamespace] | None:
    if device.recovery is None:
        return None
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=device.recovery))]


_ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetUUID": lambda lib, device: device.uuid,
    "nvmlDeviceGetUtilizationRates": lambda lib, device: (
        None if device.util is None else SimpleNamespace(gpu=device.util)
    ),
    "nvmlDeviceGetMemoryInfo": lambda lib, device, version=None: (
        None if device.used_mib is None else SimpleNamespace(used=device.used_mib * MIB)
    ),
    "nvmlDeviceGetPowerUsage": lambda lib, device: device.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda lib, device: device.limit_mw,
    "nvmlDeviceGetTemperature": lambda lib, device, sensor: device.heat,
    "nvmlDeviceGetTotalEnergyConsumption": lambda lib, device: device.energy_mj,
    "nvmlGpmQueryDeviceSupport": lambda lib, device: SimpleNamespace(isSupportedDevice=int(device.has_gpm)),
    "nvmlGpmSampleAlloc": Devices.alloc,
    "nvmlGpmSampleFree": Devices.free,
    "nvmlGpmSampleGet": lambda lib, device, buffer: lib.sample(device, None, buffer),
    "nvmlGpmMigSampleGet": Devices.sample,
    "nvmlGpmMetricsGet": Devices.compare,
    "c_nvmlGpmMetricsGet_t": lambda lib: _query(),
    "nvmlDeviceGetComputeRunningProcesses": lambda lib, device: device.running,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda lib, device: device.graphics,
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda lib, device: device.mps,
    "nvmlDeviceGetProcessUtilization": lambda lib, device, since: _processes(device, since),
    "nvmlDeviceGetRemappedRows": lambda lib, device: device.rows,
    "nvmlDeviceGetFieldValues": lambda lib, device, ids: _recovery(device),
    "nvmlDeviceGetTotalEccErrors": lambda lib, device, kind, counter: device.ecc,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda lib, device: device.reasons,
    "nvmlDeviceGetGpuInstanceById": lambda lib, device, gi: _instance(device, gi),
    "nvmlGpuInstanceGetInfo": lambda lib, instance: instance,
    "nvmlEventSetCreate": Devices.event_set,
    "nvmlEventSetFree": Devices.free_set,
    "nvmlDeviceGetSupportedEventTypes": lambda lib, device: device.events,
    "nvmlDeviceRegisterEvents": Devices.register,
    "nvmlEventSetWait_v2": Devices.wait,
}
