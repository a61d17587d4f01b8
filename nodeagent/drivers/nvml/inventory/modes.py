"""Which sharing modes a device can have on this host, and what to install or allow for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.inventory import device_nodes as caps
from nodeagent.drivers.nvml.inventory.identity import board_of
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.mig.control import MigControl
from nodeagent.drivers.nvml.mig.profiles import MigSizes
from nodeagent.drivers.nvml.mps.servers import Mps
from nodeagent.drivers.nvml.shares.memory import MemoryLimits
from nodeagent.drivers.nvml.shares.timeslice import TimeSlice
from nodeagent.protocol.limits import MODES

USUAL: Final = frozenset({"exclusive", "mig"})
NOT_NAMED: Final = "the operator does not offer {mode} on this node; name it in --offer to do so"
NO_MIG: Final = "this board has no MIG; ask for whole devices or shares of them"
NO_ROOT: Final = "MIG instances are managed by root; run the agent as root or give it CAP_SYS_ADMIN"
GUEST: Final = (
    "this is a vGPU guest, which cannot repartition its device; do it on the host of the hypervisor"
)
NO_SIZES: Final = "the driver lists no MIG sizes for this board"
NO_PLACES: Final = "the driver does not tell where MIG instances may start ({name})"
# Only a call that the driver lacks, or a board that has sizes which it does not know, is younger than the driver.
TOO_OLD: Final = "; install a newer driver"
FAULTY: Final = "; nvidia-smi mig -lgip on the node shows whether the device answers at all"
STUCK: Final = "MIG is on and the agent may not switch it off ({why}); switch it off (nvidia-smi -mig 0)"
OLD: Final = "MPS keeps limits on Volta devices and newer only"
BUSY_MODE: Final = "the compute mode lets no two programs in; set it back (nvidia-smi -c 0)"

VGPU_GUEST: Final = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
DEFAULT_MODE: Final = 0  # NVML_COMPUTEMODE_DEFAULT
VOLTA: Final = (7, 0)


@dataclass(frozen=True, slots=True)
class ModeOffers:
    """Asks device and host what stands in the way of each mode. ``named`` None is the usual: whole devices and MIG."""

    calls: NvmlCalls
    mig: MigControl
    mps: Mps
    limits: MemoryLimits
    timeslice: TimeSlice
    read: Callable[[str], str]
    version: str
    named: frozenset[str] | None

    def of(
        self, device: str, handle: Any, sizes: MigSizes, *, shared: str
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the modes that can be had now and, for each other, the sentence that says why not.

        ``shared`` is the mode that shares of the device have now, "" without any.
        """
        modes, refusals = [], {}
        for mode in MODES:
            if why := self.why_not(mode, device, handle, sizes, shared):
                refusals[mode] = why
            else:
                modes.append(mode)
        return tuple(modes), refusals

    def why_not(self, mode: str, device: str, handle: Any, sizes: MigSizes, shared: str) -> str:
        """Return why a device cannot have this mode now, "" when it can."""
        if mode not in (USUAL if self.named is None else self.named):
            return NO_MIG if mode == "mig" and self._modes(handle) is None else NOT_NAMED.format(mode=mode)
        no_mig = self._no_mig(handle, sizes)
        if mode == "mig":
            return no_mig
        modes = self._modes(handle)
        if modes is not None and modes[0] and no_mig:
            return STUCK.format(why=no_mig)
        if mode == "mps":
            return self._no_mps(handle)
        if mode == "memlimit":
            return self.limits.why_not(handle, self.version, is_mig=modes is not None and bool(modes[0]))
        if mode == "timeslice":
            return self._no_timeslice(device, handle, shared)
        return ""

    def _no_mig(self, handle: Any, sizes: MigSizes) -> str:
        if self._modes(handle) is None:
            return NO_MIG
        if self.calls.ask("nvmlDeviceGetVirtualizationMode", handle) == VGPU_GUEST:
            return GUEST
        if not sizes.all:
            return self._no_sizes(handle, sizes.ended)
        if sizes.refused:
            return _no_places(sizes.refused)
        return caps.why_not(self.read)

    def _no_sizes(self, handle: Any, ended: int) -> str:
        known = board_of(self.calls.library, handle)
        if ended == errors.FUNCTION_NOT_FOUND:
            return NO_SIZES + TOO_OLD
        if ended in (0, errors.INVALID_ARGUMENT, errors.NOT_SUPPORTED):  # asked to the end: it has none
            return NO_SIZES + (TOO_OLD if known is not None and known.profiles else "")
        return f"{NO_SIZES} ({errors.NAMES.get(ended, ended)}){FAULTY}"

    def _no_mps(self, handle: Any) -> str:
        capability = self.calls.ask("nvmlDeviceGetCudaComputeCapability", handle)
        if capability is not None and tuple(capability) < VOLTA:
            return OLD
        return self.mps.why_not()

    def _no_timeslice(self, device: str, handle: Any, shared: str) -> str:
        compute = self.calls.ask("nvmlDeviceGetComputeMode", handle)
        # While the device serves MPS, its exclusive mode is our own doing and ends with it.
        if shared != "mps" and compute not in (None, DEFAULT_MODE):
            return BUSY_MODE
        return self.timeslice.why_not(device)

    def _modes(self, handle: Any) -> tuple[int, int] | None:
        try:
            return self.mig.modes(handle)
        except NvmlLikeError:
            return None


def _no_places(code: int) -> str:
    if code == errors.NO_PERMISSION:
        return NO_ROOT
    is_old = code in (errors.FUNCTION_NOT_FOUND, errors.NOT_SUPPORTED)
    return NO_PLACES.format(name=errors.NAMES.get(code, f"NVML {code}")) + (TOO_OLD if is_old else FAULTY)
