"""What the simulated library measures: memory, load, power, temperature, errors, fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import loads
from nodeagent.simulation.nvml.session import NvmlSession, changes, reads, refuse

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
IDLE, THERMAL = 0x1, 0x40
HOT_C = 87
MHZ = {0: 1980, 1: 1980, 2: 2619, 3: 1545}


def _total(wanted: int | None) -> int:
    """Return a figure that the table of boards knows, else NOT_SUPPORTED."""
    if wanted is None:
        raise refuse(errors.NOT_SUPPORTED)
    return wanted


class ReadingCalls(NvmlSession):
    """Calls that measure. Utilisation is refused while MIG is on, whole-device figures on MIG devices."""

    @reads
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        """Return memory in bytes; version 2 tells the driver's own part apart, version 1 counts it as used."""
        device, part = self.part(handle)
        total, reserved, used = loads.memory_bytes(self.host, device, part)
        if not version:
            return pynvml.c_nvmlMemory_t(total, total - used - reserved, used + reserved)
        if version != pynvml.nvmlMemory_v2:
            raise refuse(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return pynvml.c_nvmlMemory_v2_t(version, total, reserved, total - used - reserved, used)

    @reads
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """Return the load in percent."""
        device, _ = self.part(handle)
        device.gpu.utilization_rates()
        busy = loads.device_percent(self.host, device, self.host.now_s())
        return pynvml.c_nvmlUtilization_t(round(busy), round(busy * loads.DRAM_PART))

    @reads
    def nvmlDeviceGetEncoderUtilization(self, handle: Any) -> list[int]:
        """Return [percent, sampling period in microseconds]."""
        self.part(handle)[0].gpu.utilization_rates()
        return [0, 167_000]

    @reads
    def nvmlDeviceGetDecoderUtilization(self, handle: Any) -> list[int]:
        """Return [percent, sampling period in microseconds]."""
        self.part(handle)[0].gpu.utilization_rates()
        return [0, 167_000]

    @reads
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Return milliwatts of the whole device."""
        return _total(loads.power_mw(self.host, self.whole(handle), self.host.now_s()))

    @reads
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        """Return millijoules since the driver was loaded."""
        return _total(loads.energy_mj(self.host, self.whole(handle), self.host.now_s()))

    @reads
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        """Return degrees Celsius."""
        if sensor != pynvml.NVML_TEMPERATURE_GPU:
            raise refuse(errors.INVALID_ARGUMENT)
        return loads.temperature_c(self.host, self.whole(handle), self.host.now_s())

    @reads
    def nvmlDeviceGetTemperatureThreshold(self, handle: Any, threshold: int) -> int:
        """Return the temperature at which the device slows down (1) or shuts down (0)."""
        self.whole(handle)
        known = {0: HOT_C + 5, 1: HOT_C + 2, 3: HOT_C}
        return _total(known.get(threshold))

    @reads
    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:
        """Return the limit in milliwatts."""
        device = self.whole(handle)
        return _total(device.power_limit_mw or device.default_limit_mw)

    nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerManagementLimit

    @reads
    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any) -> int:
        """Return the limit that the device starts with."""
        return _total(self.whole(handle).default_limit_mw)

    @reads
    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any) -> list[int]:
        """Return [lowest, highest] in milliwatts."""
        device = self.whole(handle)
        return [_total(device.lowest_limit_mw), _total(device.default_limit_mw)]

    @changes
    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, limit: int) -> None:
        """Set the limit in milliwatts; it does not survive a reboot."""
        device = self.whole(handle)
        self.require_root()
        if not _total(device.lowest_limit_mw) <= limit <= _total(device.default_limit_mw):
            raise refuse(errors.INVALID_ARGUMENT)
        device.power_limit_mw = limit

    @reads
    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        """Return MHz."""
        self.whole(handle)
        return _total(MHZ.get(kind))

    @reads
    def nvmlDeviceGetPerformanceState(self, handle: Any) -> int:
        """Return 0, the highest state."""
        self.whole(handle)
        return 0

    @reads
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        """Return why clocks are below their highest, as bits."""
        device, now = self.whole(handle), self.host.now_s()
        if device.clock_reasons is not None:
            return device.clock_reasons
        is_hot = loads.temperature_c(self.host, device, now) >= HOT_C
        is_idle = not loads.device_percent(self.host, device, now)
        return THERMAL * is_hot | IDLE * is_idle

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    @reads
    def nvmlDeviceGetEccMode(self, handle: Any) -> list[int]:
        """Return [current, pending]: always on."""
        self.whole(handle)
        return [1, 1]

    @reads
    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        """Return memory errors, corrected (0) or not (1), since the last reset (0) or ever (1)."""
        kept = self.whole(handle).errors
        counts = {
            (CORRECTED, VOLATILE): kept.corrected,
            (CORRECTED, AGGREGATE): kept.corrected_ever,
            (UNCORRECTED, VOLATILE): kept.uncorrected,
            (UNCORRECTED, AGGREGATE): kept.uncorrected_ever,
        }
        if (kind, counter) not in counts:
            raise refuse(errors.INVALID_ARGUMENT)
        return counts[kind, counter]

    @reads
    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]:
        """Return (corrected, uncorrected, pending, failed)."""
        return _rows(self.whole(handle))

    @reads
    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Sequence[Any]) -> Any:
        """Return the fields asked for; one that the device has not says so in its own ``nvmlReturn``."""
        device = self.whole(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, asked in zip(values, fields, strict=True):
            value.fieldId, value.scopeId = asked if isinstance(asked, tuple) else (asked, 0)
            value.timestamp = self.host.clock() // 1000
            known = _FIELDS.get(int(value.fieldId))
            found = None if known is None else known(self.host, device)
            if found is None:
                value.nvmlReturn = errors.NOT_SUPPORTED
                continue
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            value.value.ullVal = found
        return values


def _rows(device: NvmlDevice) -> tuple[int, int, int, int]:
    kept = device.errors
    return (
        kept.rows_corrected,
        kept.rows_uncorrected,
        int(kept.is_remap_pending),
        int(kept.is_remap_failed),
    )


Field = Callable[["SimulatedHost", NvmlDevice], int | None]
_FIELDS: dict[int, Field] = {
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: lambda _, device: device.recovery_action,
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: lambda _, device: device.errors.corrected,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: lambda _, device: device.errors.uncorrected,
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: lambda _, device: device.errors.corrected_ever,
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: lambda _, device: device.errors.uncorrected_ever,
    pynvml.NVML_FI_DEV_REMAPPED_COR: lambda _, device: _rows(device)[0],
    pynvml.NVML_FI_DEV_REMAPPED_UNC: lambda _, device: _rows(device)[1],
    pynvml.NVML_FI_DEV_REMAPPED_PENDING: lambda _, device: _rows(device)[2],
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: lambda _, device: _rows(device)[3],
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: lambda host, device: loads.energy_mj(
        host, device, host.now_s()
    ),
    pynvml.NVML_FI_DEV_POWER_INSTANT: lambda host, device: loads.power_mw(host, device, host.now_s()),
    pynvml.NVML_FI_DEV_POWER_AVERAGE: lambda host, device: loads.power_mw(host, device, host.now_s()),
}
