"""Compute mode of devices shared by MPS: exclusive while one daemon serves a device, so that nothing goes past it."""

from __future__ import annotations

from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError

DEFAULT: Final = 0  # NVML_COMPUTEMODE_DEFAULT
EXCLUSIVE: Final = 3  # NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
VOLTA: Final = (7, 0)
MIG: Final = "MIG-"


class ComputeModes:
    """Reads and sets compute modes by device UUID. MIG instances have none of their own and are left alone."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._handles: dict[str, Any] = {}

    def require_mps(self, device: str) -> None:
        """Raise NotOfferedError for a device older than Volta: its MPS keeps no limits."""
        if device.startswith(MIG):
            return
        found = self._ask("nvmlDeviceGetCudaComputeCapability", device)
        if found is not None and tuple(found) < VOLTA:
            raise NotOfferedError(
                "MPS keeps limits on Volta devices and newer only; share this device by time slices"
            )

    def is_as_wanted(self, device: str, *, daemons: int) -> bool:
        """Say whether the mode is the one for as many daemons; also where there is none to set."""
        found = None if device.startswith(MIG) else self._ask("nvmlDeviceGetComputeMode", device)
        return found is None or found == _mode_for(daemons)

    def settle(self, device: str, *, daemons: int) -> None:
        """Set the mode for as many daemons: exclusive for one, since only its server is let in; else default.

        Devices without compute modes stay as they are. Raises NvmlLikeError when the change is refused.
        """
        if device.startswith(MIG):
            return
        mode = _mode_for(daemons)
        found = self._ask("nvmlDeviceGetComputeMode", device)
        if found is not None and found != mode:
            self._ask("nvmlDeviceSetComputeMode", device, mode)

    def give_back(self, device: str, *, daemons: int) -> None:
        """Set the mode after a daemon has ended; a device that is lost or gone keeps nobody from that."""
        try:
            self.settle(device, daemons=daemons)
        except NvmlLikeError as no:
            if no.code not in (errors.GPU_IS_LOST, errors.NOT_FOUND):
                raise

    def _ask(self, call: str, device: str, *words: int) -> Any:
        try:
            return self._call(call, device, *words)
        except self._nvml.NVMLError as no:
            if no.value in (errors.NOT_SUPPORTED, errors.FUNCTION_NOT_FOUND):
                return None
            why = "run the agent as root" if no.value == errors.NO_PERMISSION else f"{call} on {device}"
            raise NvmlLikeError(int(no.value), why) from no

    def _call(self, call: str, device: str, *words: int) -> Any:
        function = getattr(self._nvml, call)
        known = self._handles.get(device)
        if known is not None:
            try:
                return function(known, *words)
            except self._nvml.NVMLError as no:
                if no.value != errors.INVALID_ARGUMENT:
                    raise
                # The handle is from before a reset.
                del self._handles[device]
        handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
        # Looking a device up can take seconds on a busy host: keep what was found.
        self._handles[device] = handle
        return function(handle, *words)


def _mode_for(daemons: int) -> int:
    return EXCLUSIVE if daemons == 1 else DEFAULT
