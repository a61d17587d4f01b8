"""What devices complain about: the states they tell, joined with the events they reported.

A state is a fact as long as it is read. An event is over in a moment, so it is kept until its rule says that it is
done with (nodeagent/protocol/fault_rules.py). Nothing here changes a device; no code path resets one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from nodeagent.drivers.nvml.health.events import ECC_CORRECTED, ECC_UNCORRECTED, XID, DeviceEvent, EventWatch
from nodeagent.drivers.nvml.library.figures import LostError, figure
from nodeagent.drivers.nvml.telemetry.process_loads import LISTS
from nodeagent.protocol.fault_rules import FaultRule, FaultRules, told
from nodeagent.protocol.messages import HealthFact

NS: Final = 1_000_000_000
# An event without a state of its own is over after this long without another one.
QUIET_NS: Final = 600 * NS
# Every event is shown at least this long, also when the process it hit has ended already.
HOLD_NS: Final = 60 * NS

FALLEN: Final = "79"
UNWATCHED: Final = "events_unwatched"
# nvmlDeviceGpuRecoveryAction_t in nvml.h; 0 is none.
RECOVERY: Final = {
    1: "recovery_gpu_reset",
    2: "recovery_node_reboot",
    3: "recovery_drain_p2p",
    4: "recovery_drain_and_reset",
    5: "recovery_imex_domain",
    6: "recovery_bus_reset",
    7: "recovery_system_reboot",
}


@dataclass(slots=True)
class _Hit:
    """Where an event struck last, and the processes that were there then (None: not known or of no concern)."""

    pids: frozenset[int] | None
    last_ns: int
    is_told: bool = False


@dataclass(slots=True)
class _Kept:
    """An event that is not done with. ``epoch``: how often the device had been reset when it came.

    ``hits`` are by GPU instance and its place, each None where it concerns the whole device or is not known.
    """

    rule: FaultRule
    epoch: int = 0
    count: int = 0
    last_ns: int = 0
    hits: dict[tuple[int | None, int | None], _Hit] = field(default_factory=dict)


@dataclass(slots=True)
class _Device:
    """What was read of a device the last time. ``epoch`` rises with every sign that it was reset."""

    handle: Any
    epoch: int = 0
    is_lost: bool = False
    recovery: int | None = None
    ecc_base: int | None = None
    ecc: int | None = None


class DeviceFaults:
    """Facts about health; called from one thread at a time, every few seconds."""

    def __init__(
        self,
        library: Any,
        handles: Mapping[str, Any],
        watch: EventWatch | None,
        rules: FaultRules,
        clock_ns: Callable[[], int],
    ) -> None:
        """Take the devices by uuid (read anew each time), who listens to events, and a wall clock in ns."""
        self._nvml = library
        self._handles = handles
        self._watch = watch
        self._rules = rules
        self._clock_ns = clock_ns
        self._devices: dict[str, _Device] = {}
        self._kept: dict[tuple[str, str], _Kept] = {}

    def facts(self) -> list[HealthFact]:
        """Return one fact per device and code; device "" concerns the node."""
        events = [] if self._watch is None else self._watch.drain()
        for event in events:
            self._keep(event)
        found: dict[tuple[str, str], HealthFact] = {}
        for uuid, handle in dict(self._handles).items():
            for code, detail in self._states(uuid, handle).items():
                found[uuid, code] = told(self._rules.of(code), uuid, detail)
        self._drop()
        for (uuid, code), kept in self._kept.items():
            for hit in kept.hits.values():
                hit.is_told = True
            state = found.get((uuid, code))
            detail = _detail(kept) if state is None else f"{_detail(kept)}; still so"
            found[uuid, code] = told(kept.rule, uuid, detail, [start for _gi, start in kept.hits])
        return [*found.values(), *self._unwatched()]

    def _keep(self, event: DeviceEvent) -> None:
        """Remember an event until its rule lets it go; that a device is lost is read, not remembered."""
        if event.kind == XID and event.xid is not None:
            rule = self._rules.of_xid(event.xid)
        elif event.kind in (ECC_CORRECTED, ECC_UNCORRECTED):
            rule = self._rules.of(event.kind)
        else:
            return
        key = (event.device, rule.code)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(rule)
        device = self._devices.get(event.device)
        kept.epoch = 0 if device is None else device.epoch
        kept.count += event.count
        kept.last_ns = event.at_ns
        pids = self._pids(event.device, event.gi_id) if rule.clears == "restart" else None
        kept.hits[event.gi_id, event.start] = _Hit(pids, event.at_ns)

    def _drop(self) -> None:
        """Forget the events that are done with, place by place; each is told at least once."""
        now = self._clock_ns()
        listed: dict[str, frozenset[int] | None] = {}
        for (uuid, code), kept in list(self._kept.items()):
            for place, hit in list(kept.hits.items()):
                if hit.is_told and self._is_over(uuid, kept, hit, now, listed):
                    del kept.hits[place]
            if not kept.hits:
                del self._kept[uuid, code]

    def _is_over(
        self, uuid: str, kept: _Kept, hit: _Hit, now: int, listed: dict[str, frozenset[int] | None]
    ) -> bool:
        """Say whether an event is done with where it struck; ``listed`` holds the processes by device, once read."""
        age, clears = now - hit.last_ns, kept.rule.clears
        if clears == "reset":
            device = self._devices.get(uuid)
            return device is not None and not device.is_lost and device.epoch > kept.epoch
        if clears not in ("agent", "restart"):
            return False
        if age >= QUIET_NS or clears == "agent" or age < HOLD_NS or hit.pids is None:
            return age >= QUIET_NS
        if uuid not in listed:
            listed[uuid] = self._pids(uuid, None)
        now_there = listed[uuid]
        return now_there is not None and not hit.pids & now_there

    def _states(self, uuid: str, handle: Any) -> dict[str, str]:
        """Return the codes of what a device says of itself now, each with a detail."""
        device = self._devices.get(uuid)
        if device is None:
            device = self._devices[uuid] = _Device(handle)
        if device.handle is not handle:
            # Listed anew: handles change only after a reset or a reload of the driver.
            device.handle, device.epoch, device.ecc_base = handle, device.epoch + 1, None
        try:
            codes = self._read(device)
        except LostError:
            device.is_lost = True
            return {FALLEN: "it does not answer"}
        if device.is_lost:
            device.is_lost, device.epoch = False, device.epoch + 1
        return codes

    def _read(self, device: _Device) -> dict[str, str]:
        """Read the states of a device and note signs of a reset; raises LostError."""
        nvml, codes = self._nvml, {}
        figure(nvml, "nvmlDeviceGetMemoryInfo", device.handle)
        rows = figure(nvml, "nvmlDeviceGetRemappedRows", device.handle)
        if rows is not None and rows[3]:
            codes["row_remap_failed"] = f"{rows[0]} rows after corrected, {rows[1]} after uncorrected errors"
        elif rows is not None and rows[2]:
            codes["row_remap_pending"] = "work that runs is not disturbed"
        action = self._recovery(device.handle)
        if action:
            codes[RECOVERY.get(action, "recovery_unknown")] = f"recovery action {action}"
        if action == 0 and device.recovery:
            device.epoch += 1
        device.recovery = device.recovery if action is None else action
        codes.update(self._memory_errors(device))
        codes.update(self._brakes(device.handle))
        return codes

    def _memory_errors(self, device: _Device) -> dict[str, str]:
        """Compare the count of uncorrected errors, which starts from 0 at each reset, with the first one read."""
        nvml = self._nvml
        count = figure(
            nvml,
            "nvmlDeviceGetTotalEccErrors",
            device.handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        )
        if count is None:
            return {}
        if device.ecc is not None and count < device.ecc:
            device.epoch, device.ecc_base = device.epoch + 1, None
        device.ecc = count
        if device.ecc_base is None:
            device.ecc_base = count
        grown = count - device.ecc_base
        return {"ecc_uncorrected": f"{grown} since the agent looks"} if grown else {}

    def _brakes(self, handle: Any) -> dict[str, str]:
        nvml = self._nvml
        reasons = figure(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:
            return {}
        heat, power = (
            nvml.nvmlClocksEventReasonHwThermalSlowdown,
            nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
        )
        return {code: "now" for code, bit in (("thermal", heat), ("power_brake", power)) if reasons & bit}

    def _recovery(self, handle: Any) -> int | None:
        """Return what the driver asks for, None where it has no such field."""
        number = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        values = None if number is None else figure(self._nvml, "nvmlDeviceGetFieldValues", handle, [number])
        if not values or values[0].nvmlReturn != 0:
            return None
        return int(values[0].value.uiVal)

    def _pids(self, uuid: str, gi_id: int | None) -> frozenset[int] | None:
        """Return the processes on a device or one instance of it, None when they cannot be listed."""
        handle = self._handles.get(uuid)
        if handle is None:
            return None
        found: set[int] = set()
        is_listed = False
        for call in LISTS:
            try:
                rows = figure(self._nvml, call, handle)
            except LostError:
                return None
            is_listed = is_listed or rows is not None
            found.update(int(row.pid) for row in rows or () if gi_id is None or row.gpuInstanceId == gi_id)
        return frozenset(found) if is_listed else None

    def _unwatched(self) -> list[HealthFact]:
        """Return the node's own fact when events are not heard, as a remark where single devices have none."""
        if self._watch is None:
            return []
        rule = self._rules.of(UNWATCHED)
        if self._watch.trouble:
            return [told(rule, "", self._watch.trouble)]
        silent = "; ".join(f"{uuid}: {why}" for uuid, why in self._watch.silent.items())
        return [replace(told(rule, "", silent), severity="info")] if silent else []


def _detail(kept: _Kept) -> str:
    """Return count, time and place of an event, for people."""
    at = datetime.fromtimestamp(kept.last_ns / NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    times = f"{kept.count} times, last at {at}" if kept.count > 1 else f"at {at}"
    xid = f"XID {kept.rule.code}, " if kept.rule.code.isdigit() else ""
    places = ", ".join(map(str, sorted({gi for gi, _start in kept.hits if gi is not None})))
    return f"{xid}{times}" + (f", GPU instance {places}" if places else "")
