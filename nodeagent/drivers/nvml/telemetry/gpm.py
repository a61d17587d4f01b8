"""Activity from NVML's performance counters (GPM, Hopper and later): of a whole device and of each MIG instance.

A figure is the difference of two samples. Each instance keeps two buffers and takes turns with them, so that a
reading costs one sample and one comparison. Metric ids: ``NVML_GPM_METRIC_*`` in nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers.nvml.library.figures import Activity, LostError, figure

GRAPHICS_UTIL: Final = 1
SM_UTIL: Final = 2
ANY_TENSOR_UTIL: Final = 5
DRAM_BW_UTIL: Final = 10
METRICS: Final = (GRAPHICS_UTIL, SM_UTIL, ANY_TENSOR_UTIL, DRAM_BW_UTIL)
# NVML's documentation asks for at least 100 ms between two samples that are compared.
APART_NS: Final = 100_000_000

Key = tuple[str, int | None]


@dataclass(slots=True)
class _Counter:
    """The last sample of one instance (``gi`` None: the whole device) and the buffer for the next one."""

    handle: Any
    last: Any = None
    last_ns: int = 0
    spare: Any = None
    activity: Activity | None = None


class Gpm:
    """Keeps the samples between readings. One thread at a time; ``close`` gives all buffers back."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._counters: dict[Key, _Counter] = {}
        self._supports: dict[str, tuple[Any, bool]] = {}
        self._query: Any = None

    def is_supported(self, device: str, handle: Any) -> bool:
        """Say whether a device has these counters, as it says itself; asked once per handle. Raises LostError."""
        known = self._supports.get(device)
        if known is not None and known[0] is handle:
            return known[1]
        said = figure(self._nvml, "nvmlGpmQueryDeviceSupport", handle)
        answer = said is not None and bool(said.isSupportedDevice)
        self._supports[device] = (handle, answer)
        return answer

    def read(self, device: str, handle: Any, gi_id: int | None, now_ns: int) -> Activity | None:
        """Return the activity since the last reading; None when there is none to compare with, or no answer.

        Readings closer than 100 ms get the last answer again. Raises LostError.
        """
        key = (device, gi_id)
        counter = self._counters.get(key)
        if counter is not None and counter.handle is not handle:
            self.forget(device)
            counter = None
        if counter is None:
            counter = self._counters[key] = _Counter(handle)
        if counter.last is not None and now_ns - counter.last_ns < APART_NS:
            return counter.activity
        sample = self._sample(counter, gi_id)
        if sample is None:
            self._free(key)
            return None
        counter.activity = None if counter.last is None else self._compare(counter.last, sample)
        counter.spare, counter.last, counter.last_ns = counter.last, sample, now_ns
        return counter.activity

    def forget(self, device: str, gi_id: int | None = None) -> None:
        """Drop the samples of an instance, or all of a device: the next tenant starts from its own."""
        keys = [k for k in self._counters if k[0] == device and (gi_id is None or k[1] == gi_id)]
        for key in keys:
            self._free(key)

    def keep(self, keys: Iterable[Key]) -> None:
        """Drop the samples of everything that is not named: instances that are gone."""
        for key in set(self._counters) - set(keys):
            self._free(key)

    def close(self) -> None:
        """Give all buffers back."""
        self.keep(())

    def _sample(self, counter: _Counter, gi_id: int | None) -> Any:
        """Return a filled buffer, None when the device does not answer. A lost device's buffers are given back."""
        buffer = counter.spare
        counter.spare = None
        if buffer is None:
            buffer = figure(self._nvml, "nvmlGpmSampleAlloc")
        if buffer is None:
            return None
        filled = None
        try:
            if gi_id is None:
                filled = figure(self._nvml, "nvmlGpmSampleGet", counter.handle, buffer)
            else:
                filled = figure(self._nvml, "nvmlGpmMigSampleGet", counter.handle, gi_id, buffer)
        finally:
            if filled is None:
                self._give_back(buffer)
        return filled

    def _compare(self, before: Any, after: Any) -> Activity | None:
        query = self._query
        if query is None:
            query = self._query = self._nvml.c_nvmlGpmMetricsGet_t()
            query.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            query.numMetrics = len(METRICS)
            for place, metric in enumerate(METRICS):
                query.metrics[place].metricId = metric
        query.sample1, query.sample2 = before, after
        answer = figure(self._nvml, "nvmlGpmMetricsGet", query)
        if answer is None:
            return None
        return Activity(*(_percent(answer.metrics[place]) for place in range(len(METRICS))))

    def _free(self, key: Key) -> None:
        counter = self._counters.pop(key)
        self._give_back(counter.last)
        self._give_back(counter.spare)

    def _give_back(self, buffer: Any) -> None:
        if buffer is None:
            return
        try:
            figure(self._nvml, "nvmlGpmSampleFree", buffer)
        except LostError:
            return


def _percent(metric: Any) -> float | None:
    """Return a metric that was computed, 100 at most: two samples taken apart make a little more of a busy device.

    An unfinished one comes as NaN. Seen on MIG: https://github.com/NVIDIA/DCGM/issues/152
    """
    value = float(metric.value)
    return min(value, 100.0) if metric.nvmlReturn == 0 and value == value and value >= 0 else None
