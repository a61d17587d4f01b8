"""Sleep for NVIDIA devices: the lowest power limit the device allows, where the operator enabled it on the node.

A limit caps what a device may draw; it does not switch it off. Changing it needs root. The limits found before
are put back on waking; after a restart of the agent, when they are not known any more, the devices' defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.inventory.identity import ask

HOW = "power limits are left alone on this node; start the agent with --power-saving to allow them"


class PowerLimits:
    """The power limits of a node's devices, by UUID. Limits are thousandths of a watt, as in NVML."""

    def __init__(self, library: Any, handles: Mapping[str, Any], *, is_allowed: bool) -> None:
        self._nvml = library
        self._handles = handles
        self._is_allowed = is_allowed
        self._before: dict[str, int] = {}

    def state(self) -> str:
        """Return "asleep" when every device stands at its lowest limit, "" where a device does not tell."""
        if not self._is_allowed or not self._handles:
            return "unsupported"
        ranges = [self._range(handle) for handle in self._handles.values()]
        if any(known is None or known[0] >= known[1] for known in ranges):
            return "unsupported"
        limits = [ask(self._nvml, "nvmlDeviceGetPowerManagementLimit", h) for h in self._handles.values()]
        if any(limit is None for limit in limits):
            return ""
        lowest = [known[0] for known in ranges if known is not None]
        return "asleep" if all(at <= low for at, low in zip(limits, lowest, strict=True)) else "awake"

    def lower(self) -> None:
        """Set every device to its lowest limit; all of them or none. Raises IN_USE while a process is on one."""
        self._require_allowed()
        self._require_idle()
        before = {uuid: self._limit(handle) for uuid, handle in self._handles.items()}
        done: list[str] = []
        try:
            for uuid, handle in self._handles.items():
                self._set(handle, self._lowest(handle))
                done.append(uuid)
        except NvmlLikeError:
            for uuid in done:
                self._set(self._handles[uuid], before[uuid])
            raise
        self._before = before

    def restore(self) -> None:
        """Give every device the limit it had, or its default; goes on after a refusal and raises the last one."""
        self._require_allowed()
        refused: NvmlLikeError | None = None
        for uuid, handle in self._handles.items():
            try:
                self._set(handle, self._before.get(uuid) or self._default(handle))
            except NvmlLikeError as no:
                refused = no
        if refused is not None:
            raise refused
        self._before = {}

    def _range(self, handle: Any) -> tuple[int, int] | None:
        known = ask(self._nvml, "nvmlDeviceGetPowerManagementLimitConstraints", handle)
        return None if known is None else (int(known[0]), int(known[1]))

    def _lowest(self, handle: Any) -> int:
        known = self._range(handle)
        if known is None:
            raise NvmlLikeError(errors.NOT_SUPPORTED, "the device does not tell its lowest power limit")
        return known[0]

    def _limit(self, handle: Any) -> int:
        return self._read("nvmlDeviceGetPowerManagementLimit", handle)

    def _default(self, handle: Any) -> int:
        return self._read("nvmlDeviceGetPowerManagementDefaultLimit", handle)

    def _read(self, call: str, handle: Any) -> int:
        value = ask(self._nvml, call, handle)
        if value is None:
            raise NvmlLikeError(errors.UNKNOWN, f"{call} has no answer")
        return int(value)

    def _set(self, handle: Any, limit: int) -> None:
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(handle, limit)
        except self._nvml.NVMLError as no:
            code = getattr(no, "value", errors.UNKNOWN)
            raise NvmlLikeError(code, "the power limit cannot be set; it needs root") from no

    def _require_allowed(self) -> None:
        if not self._is_allowed:
            raise NotOfferedError(HOW)

    def _require_idle(self) -> None:
        for uuid, handle in self._handles.items():
            running = ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
            if running is None:
                raise NvmlLikeError(errors.UNKNOWN, f"{uuid} does not tell what runs on it")
            if running:
                raise NvmlLikeError(errors.IN_USE, f"a process is on {uuid}")
