"""What devices and slices do right now: one reading a second, every figure with its source, unknown stays None.

| figure | whole device | MIG slice | share of a device |
|--|--|--|--|
| utilisation | NVML; with MIG on: GPM, else DCGM | GPM, else DCGM | its processes, as the device samples them |
| SMs, tensor cores, memory bandwidth | GPM, else DCGM | GPM, else DCGM | SMs as utilisation, others unknown |
| memory | NVML | NVML, of the slice | its processes |
| power | NVML | estimate | estimate |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.drivers.base import DriverReading, PartitionSample
from nodeagent.drivers.nvml.library.figures import Activity, LostError, figure, memory_used
from nodeagent.drivers.nvml.telemetry.dcgm import Dcgm, Key
from nodeagent.drivers.nvml.telemetry.gpm import Gpm
from nodeagent.drivers.nvml.telemetry.live import LiveSlice
from nodeagent.drivers.nvml.telemetry.process_loads import ProcessLoad, load_of
from nodeagent.protocol.boards import UnknownBoardError, board
from nodeagent.protocol.messages import DeviceFact, DeviceSample

MIB: Final = 1024 * 1024
NVML: Final = "nvml"
GPM: Final = "gpm"
DCGM: Final = "dcgm"
PROCESS: Final = "nvml_process"
ESTIMATE: Final = "estimate"
UNAVAILABLE: Final = "unavailable"

PidsOf = Callable[[str], Collection[int] | None]


@dataclass(slots=True)
class _Seen:
    """What one reading knows of one slice."""

    activity: Activity = field(default_factory=Activity)
    source: str = UNAVAILABLE
    memory_mib: int | None = None
    memory_source: str = NVML


class Telemetry:
    """Measures all devices and what stands on them. Called from one thread at a time; keeps samples between."""

    def __init__(
        self,
        library: Any,
        *,
        clock_ns: Callable[[], int],
        dcgm: Dcgm | None = None,
        pids_of: PidsOf | None = None,
    ) -> None:
        """Take a clock that never goes back (ns) and, for shares, the pids of a partition (None: not known)."""
        self._nvml = library
        self._clock_ns = clock_ns
        self._dcgm = dcgm
        self._pids_of = pids_of or (lambda partition: None)
        self._gpm = Gpm(library)
        self._process_since_us: dict[str, int] = {}

    def read(
        self, handles: Mapping[str, Any], facts: Mapping[str, DeviceFact], slices: Sequence[LiveSlice]
    ) -> DriverReading:
        """Measure once. A device that is lost has nothing but None; the others are not touched by that."""
        devices: list[DeviceSample] = []
        partitions: list[PartitionSample] = []
        existing: dict[str, list[LiveSlice]] = {uuid: [] for uuid in handles}
        for slot in slices:
            existing.setdefault(slot.device, []).append(slot)
        now_ns = self._clock_ns()
        self._drop_gone(existing)
        for uuid, its in existing.items():
            fact, handle = facts.get(uuid), handles.get(uuid)
            try:
                if fact is None or handle is None:
                    raise LostError(uuid)
                sample, seen = self._device(fact, handle, its, now_ns)
            except LostError:
                self._gpm.forget(uuid)
                sample = DeviceSample(uuid, None, None, None, None, source=UNAVAILABLE)
                seen = [_Seen() for _ in its]
            if uuid in handles:
                devices.append(sample)
            partitions += _partitions(sample, fact, its, seen)
        return DriverReading(tuple(devices), tuple(partitions))

    def forget(self, device: str, gi_id: int | None = None) -> None:
        """Drop what was sampled of an instance (None: of all on a device): its place serves somebody else now."""
        self._gpm.forget(device, gi_id)

    def close(self) -> None:
        """Give all sample buffers back."""
        self._gpm.close()

    def _drop_gone(self, existing: Mapping[str, Sequence[LiveSlice]]) -> None:
        keys: set[Key] = {(uuid, None) for uuid in existing}
        keys.update((slot.device, slot.gi_id) for its in existing.values() for slot in its)
        self._gpm.keep(keys)

    def _device(
        self, fact: DeviceFact, handle: Any, its: Sequence[LiveSlice], now_ns: int
    ) -> tuple[DeviceSample, list[_Seen]]:
        """Measure a device and its slices; raises LostError."""
        nvml, uuid = self._nvml, fact.uuid
        rates = figure(nvml, "nvmlDeviceGetUtilizationRates", handle)
        used = memory_used(nvml, handle)
        activity, source = self._activity(uuid, handle, None, now_ns)
        util = activity.util if rates is None else float(rates.gpu)
        power_mw = figure(nvml, "nvmlDeviceGetPowerUsage", handle)
        limit_mw = figure(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
        heat = figure(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        energy_mj = figure(nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
        seen = self._slices(fact, handle, its, now_ns, util)
        own = _source(util, NVML if rates is not None else source)
        if util is None:
            util, own = _from_slices(fact, its, seen)
        sample = DeviceSample(
            device=uuid,
            util_percent=util,
            memory_used_mib=None if used is None else used // MIB,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if heat is None else float(heat),
            energy_mj=energy_mj,
            source=own,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            sm_percent=activity.sm,
            tensor_percent=activity.tensor,
            bandwidth_percent=activity.bandwidth,
            sources=_sources(activity, source, own),
        )
        return sample, seen

    def _activity(self, uuid: str, handle: Any, gi_id: int | None, now_ns: int) -> tuple[Activity, str]:
        """Return the counters of a device or of one instance, from GPM where it has them, else from DCGM."""
        if self._gpm.is_supported(uuid, handle):
            found = self._gpm.read(uuid, handle, gi_id, now_ns)
            if found is not None:
                return found, GPM
        elif self._dcgm is not None:
            found = self._dcgm.read(now_ns).get((uuid, gi_id))
            if found is not None:
                return found, DCGM
        return Activity(), UNAVAILABLE

    def _slices(
        self, fact: DeviceFact, handle: Any, its: Sequence[LiveSlice], now_ns: int, util: float | None
    ) -> list[_Seen]:
        """Return what is known of each slice; the processes of a device are listed once for all its shares."""
        has_shares = any(slot.mode not in ("mig", "exclusive") for slot in its)
        load = self._processes(fact.uuid, handle) if has_shares else None
        seen = []
        for slot in its:
            if slot.mode == "exclusive":
                seen.append(_Seen())
            elif slot.mode == "mig":
                seen.append(self._instance(slot, handle, now_ns))
            else:
                seen.append(self._share(slot, load, util))
        return seen

    def _instance(self, slot: LiveSlice, handle: Any, now_ns: int) -> _Seen:
        if slot.gi_id is None:
            return _Seen()
        activity, source = self._activity(slot.device, handle, slot.gi_id, now_ns)
        used = None if slot.handle is None else memory_used(self._nvml, slot.handle)
        return _Seen(activity, source, None if used is None else used // MIB)

    def _share(self, slot: LiveSlice, load: ProcessLoad | None, util: float | None) -> _Seen:
        pids = self._pids_of(slot.partition)
        if pids is None or load is None:
            return _Seen(memory_source=PROCESS)
        busy = load.sm_percent(pids, is_mps=slot.mode == "mps", device_percent=util)
        if busy is not None and slot.share_milli:
            busy = min(100.0, busy * 1000 / slot.share_milli)
        used = load.memory(pids)
        memory = None if used is None else used // MIB
        return _Seen(Activity(busy, busy), _source(busy, PROCESS), memory, PROCESS)

    def _processes(self, uuid: str, handle: Any) -> ProcessLoad | None:
        load = load_of(self._nvml, handle, self._process_since_us.get(uuid, 0))
        if load is not None:
            self._process_since_us[uuid] = load.next_since_us
        return load


def _partitions(
    device: DeviceSample, fact: DeviceFact | None, its: Sequence[LiveSlice], seen: Sequence[_Seen]
) -> list[PartitionSample]:
    powers = apportion(device.power_w, fact, its, [one.activity.util for one in seen])
    return [
        _whole(device, slot) if slot.mode == "exclusive" else _part(slot, one, power)
        for slot, one, power in zip(its, seen, powers, strict=True)
    ]


def _whole(device: DeviceSample, slot: LiveSlice) -> PartitionSample:
    return PartitionSample(
        partition=slot.partition,
        device=slot.device,
        start=slot.start,
        util_percent=device.util_percent,
        memory_used_mib=device.memory_used_mib,
        memory_mib=slot.memory_mib,
        source=device.source,
        sm_percent=device.sm_percent,
        tensor_percent=device.tensor_percent,
        bandwidth_percent=device.bandwidth_percent,
        power_w=device.power_w,
        sources=device.sources,
    )


def _part(slot: LiveSlice, seen: _Seen, power_w: float | None) -> PartitionSample:
    sources = _sources(seen.activity, seen.source, seen.source)
    if seen.memory_mib is None:
        sources["memory_used_mib"] = UNAVAILABLE
    elif seen.memory_source != seen.source:
        sources["memory_used_mib"] = seen.memory_source
    sources["power_w"] = UNAVAILABLE if power_w is None else ESTIMATE
    return PartitionSample(
        partition=slot.partition,
        device=slot.device,
        start=slot.start,
        util_percent=seen.activity.util,
        memory_used_mib=seen.memory_mib,
        memory_mib=slot.memory_mib,
        source=_source(seen.activity.util, seen.source),
        sm_percent=seen.activity.sm,
        tensor_percent=seen.activity.tensor,
        bandwidth_percent=seen.activity.bandwidth,
        power_w=power_w,
        sources=sources,
    )


def apportion(
    power_w: float | None,
    fact: DeviceFact | None,
    its: Sequence[LiveSlice],
    utils: Sequence[float | None],
) -> list[float | None]:
    """Return an estimate of the watts of each slice; a device has one sensor for all of them.

    ``watts = idle × part + (power − idle) × part × activity / Σ(part × activity)``: what an idle board draws is
    spread by size, the rest by size and activity. A part is the slice's thousandths of the SMs (of the device, for a
    share), of the memory where SMs are not told. Together never more than the device draws. None where power, a size
    or any activity on the device is unknown.
    """
    parts = [_part_of(fact, slot) for slot in its]
    known = [(part, util) for part, util in zip(parts, utils, strict=True)]
    if power_w is None or any(part is None or util is None for part, util in known):
        return [None] * len(parts)
    weights = [part * util for part, util in known if part is not None and util is not None]
    total = sum(weights)
    idle_w = power_w if total <= 0 else min(power_w, _idle_w(fact))
    return [
        None if part is None else idle_w * part + (0.0 if total <= 0 else (power_w - idle_w) * weight / total)
        for part, weight in zip(parts, weights, strict=True)
    ]


def _part_of(fact: DeviceFact | None, slot: LiveSlice) -> float | None:
    """Return which part of the device a slice is, None when unknown."""
    if slot.share_milli:
        return min(1.0, slot.share_milli / 1000)
    if slot.mode != "mig" or fact is None or not fact.memory_mib or not slot.memory_mib:
        return None
    return min(1.0, slot.memory_mib / fact.memory_mib)


def _idle_w(fact: DeviceFact | None) -> float:
    """Return what such a board draws when idle; 0 where the table of boards does not say."""
    try:
        return (board(fact.model).idle_w or 0.0) if fact is not None else 0.0
    except UnknownBoardError:
        return 0.0


def _from_slices(
    fact: DeviceFact, its: Sequence[LiveSlice], seen: Sequence[_Seen]
) -> tuple[float | None, str]:
    """Return a device's utilisation as the sum of its slices by size, when all of them are known."""
    total = 0.0
    for slot, one in zip(its, seen, strict=True):
        part = _part_of(fact, slot)
        if slot.mode != "mig" or part is None or one.activity.util is None:
            return None, UNAVAILABLE
        total += part * one.activity.util
    return (total, ESTIMATE) if its else (None, UNAVAILABLE)


def _source(value: float | None, source: str) -> str:
    return UNAVAILABLE if value is None else source


def _sources(activity: Activity, source: str, own: str) -> dict[str, str]:
    """Name the source of each counter that has another one than the utilisation, or none at all."""
    named = {
        "sm_percent": activity.sm,
        "tensor_percent": activity.tensor,
        "bandwidth_percent": activity.bandwidth,
    }
    return {name: _source(value, source) for name, value in named.items() if _source(value, source) != own}
