"""Performance samples (GPM) of the simulated library: per device and per GPU instance, from Hopper on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.nvml import loads
from nodeagent.simulation.nvml.session import NvmlSession, number_of, reads, refuse

NO_DATA = 21
SHORTEST_NS = 100_000_000
# Parts of the time that anything ran, by metric id; PCIe traffic in MiB/s at full load.
METRICS = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: 1.0,
    pynvml.NVML_GPM_METRIC_SM_UTIL: loads.SM_PART,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: loads.OCCUPANCY_PART,
    pynvml.NVML_GPM_METRIC_INTEGER_UTIL: loads.INTEGER_PART,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: loads.TENSOR_PART,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: loads.DRAM_PART,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: loads.PCIE_MIB_S / 100,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: loads.PCIE_MIB_S / 100,
}


@dataclass(slots=True)
class GpmSample:
    """Room for one sample: of a device, or of one GPU instance; empty until taken."""

    device: NvmlDevice | None = None
    generation: int = 0
    gi: int | None = None
    at_ns: int = 0
    busy: float = 0.0


class GpmCalls(NvmlSession):
    """Calls that take samples and compare two of them."""

    def __init__(self, host: Any) -> None:
        """Begin without samples."""
        super().__init__(host)
        self._samples: dict[int, GpmSample] = {}

    def clear(self) -> None:
        """Drop every sample too."""
        super().clear()
        self._samples.clear()

    @property
    def sample_count(self) -> int:
        """How many samples are allocated and not freed: a leak shows here."""
        return len(self._samples)

    @reads
    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        """Return a structure whose ``isSupportedDevice`` says whether samples can be had."""
        support = pynvml.c_nvmlGpmSupport_t()
        support.version = pynvml.NVML_GPM_SUPPORT_VERSION
        support.isSupportedDevice = int(self.whole(handle).board.has_slice_metrics)
        return support

    @reads
    def nvmlGpmSampleAlloc(self) -> Any:
        """Return room for a sample."""
        token = self.host.new_token()
        self._samples[token] = GpmSample()
        return pynvml.cast(pynvml.c_void_p(token), pynvml.c_nvmlGpmSample_t)

    @reads
    def nvmlGpmSampleFree(self, sample: Any) -> None:
        """Give the room back."""
        if self._samples.pop(number_of(sample) or 0, None) is None:
            raise refuse(errors.INVALID_ARGUMENT)

    @reads
    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:
        """Take a sample of a whole device."""
        device, now_s = self._measured(handle), self.host.now_s()
        self._take(sample, device, None, loads.device_percent(self.host, device, now_s))
        return sample

    @reads
    def nvmlGpmMigSampleGet(self, handle: Any, gi_id: int, sample: Any) -> Any:
        """Take a sample of one GPU instance; the handle is the device's."""
        device = self._measured(handle)
        if not device.gpu.mig_enabled:
            raise refuse(errors.NOT_SUPPORTED)
        if gi_id not in device.gpu.instances:
            raise refuse(errors.NOT_FOUND)
        inside = loads.on(self.host, device, gi_id)
        self._take(sample, device, gi_id, loads.busy_percent(self.host, inside, self.host.now_s()))
        return sample

    @reads
    def nvmlGpmMetricsGet(self, wanted: Any) -> Any:
        """Fill in the metrics asked for, from two samples of the same thing at least 100 ms apart."""
        first = self._samples.get(number_of(wanted.sample1) or 0)
        second = self._samples.get(number_of(wanted.sample2) or 0)
        if wanted.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            raise refuse(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        if first is None or second is None or first.device is None or second.device is None:
            raise refuse(errors.INVALID_ARGUMENT)
        if (first.device, first.generation, first.gi) != (second.device, second.generation, second.gi):
            raise refuse(errors.INVALID_ARGUMENT)
        is_early = second.at_ns - first.at_ns < SHORTEST_NS
        busy, metrics = (first.busy + second.busy) / 2, wanted.metrics
        for place in range(wanted.numMetrics):
            metric = metrics[place]
            part = METRICS.get(metric.metricId)
            if part is None or is_early:
                metric.nvmlReturn = NO_DATA if is_early else errors.NOT_SUPPORTED
                continue
            metric.nvmlReturn, metric.value = 0, busy * part
        return wanted

    def _measured(self, handle: Any) -> NvmlDevice:
        device = self.whole(handle)
        if not device.board.has_slice_metrics:
            raise refuse(errors.NOT_SUPPORTED)
        return device

    def _take(self, sample: Any, device: NvmlDevice, gi: int | None, busy: float) -> None:
        room = self._samples.get(number_of(sample) or 0)
        if room is None:
            raise refuse(errors.INVALID_ARGUMENT)
        room.device, room.generation, room.gi = device, device.generation, gi
        room.at_ns, room.busy = self.host.clock(), busy
