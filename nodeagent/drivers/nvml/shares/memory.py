"""Hard memory limits per cgroup and device, which driver 615 keeps without MIG and without MPS.

Source: NVIDIA, "MPS v3 Memory Partitioning" (docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html): a soft
limit is a reservation that ancestors of the cgroup carry too, until it is set to 0 while the cgroup still exists.

Kernels from 6.14 on keep such limits by their controller ``dmem``, which a cgroup has only where all above it pass
it on (Linux, admin-guide/cgroup-v2, "Enabling and Disabling"); before that the driver keeps them by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.values import MIB
from nodeagent.host.files import write_text

log = logging.getLogger(__name__)

SET: Final = "nvmlDeviceSetMemoryLimits_v1"
GET: Final = "nvmlDeviceGetMemoryLimits_v1"
ROOT: Final = "/sys/fs/cgroup"
CONTROLLERS: Final = f"{ROOT}/cgroup.controllers"
OWN: Final = "/proc/self/cgroup"
DMEM: Final = "dmem"
PASSED_ON: Final = "cgroup.subtree_control"
NO_LIMIT: Final = 2**64 - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX
# NVIDIA's own example reads back 8192 MiB after setting 8000: a driver may round up a little, never more.
MOST_ROUNDING: Final = 1.05
# Nothing to undo: no such cgroup, no limits on it, or a device whose mode has none.
NO_UNITS: Final = (
    "a hard memory limit binds to the holder's unit, and this node opens leases without one; let the agent use the"
    " systemd runtime, or ask for another sharing mode"
)
NO_ROOT: Final = "memory limits are set by root; run the agent as root"
NOT_HERE: Final = (
    "this device keeps no memory limits, as in a virtual machine that has a part of it; set them where the whole device"
    " is, or ask for another sharing mode"
)
NOTHING: Final = frozenset({errors.NOT_FOUND, errors.INVALID_ARGUMENT, errors.NOT_SUPPORTED})


class MemoryLimits:
    """Sets, reads back and clears limits by device handle and cgroup (absolute, below /sys/fs/cgroup)."""

    def __init__(
        self,
        calls: NvmlCalls,
        read: Callable[[str], str],
        write: Callable[[str, str], None] = write_text,
        *,
        is_root: bool = True,
        has_units: bool = True,
    ) -> None:
        """Take the library and the host's files; ``has_units``: holders come in units, which have a cgroup each."""
        self._calls, self._read, self._write = calls, read, write
        self._is_root, self._has_units = is_root, has_units
        self._tells_soft = False  # until one was seen

    def why_not(self, handle: Any, version: str, *, is_mig: bool) -> str:
        """Return what is missing for memory limits on a device, "" when they can be set; found by calling.

        ``is_mig``: the device is in MIG mode, where it has none until the agent switches that off.
        """
        codes = [self._calls.code(GET, handle, self._asked(cgroup)) for cgroup in self._samples()]
        if errors.FUNCTION_NOT_FOUND in codes:
            return f"driver {version} has no memory limits per cgroup; install 615 or newer (CUDA 13.4)"
        try:
            keepers = self._read(CONTROLLERS).split()
        except OSError:
            return (
                "memory limits need cgroup v2 at /sys/fs/cgroup; boot with systemd.unified_cgroup_hierarchy=1"
            )
        if not self._has_units:
            return NO_UNITS
        if not self._is_root or errors.NO_PERMISSION in codes:
            return NO_ROOT
        # A cgroup that cannot have limits, as the root of all, says nothing about the device: one answer is enough.
        # Without the controller (Linux before 6.14) a driver may answer so of every cgroup that has no limit yet.
        is_without = DMEM in keepers and all(code == errors.NOT_SUPPORTED for code in codes)
        return NOT_HERE if is_without and not is_mig else ""

    def _samples(self) -> list[str]:
        """Return cgroups that are there on every host: the root and the agent's own."""
        try:
            lines = self._read(OWN).splitlines()
        except OSError:
            return [ROOT]
        return [ROOT, *(ROOT + line[3:] for line in lines if line.startswith("0::/") and len(line) > 4)]

    def set(self, handle: Any, cgroup: str, memory_mib: int) -> None:
        """Let a cgroup have this much of a device's memory and no more; raises NvmlLikeError unless it reads back."""
        if not cgroup:
            raise NotOfferedError(NO_UNITS)
        self._pass_on(cgroup)
        wanted = memory_mib * MIB
        self._set(handle, cgroup, wanted, wanted)
        found = self.read(handle, cgroup)
        if found is None or not _is_about(found[1], wanted):
            kept = "no limit" if found is None else f"{found[1] // MIB} MiB"
            raise NvmlLikeError(
                errors.UNKNOWN, f"the limit of {memory_mib} MiB was set on {cgroup}, the driver keeps {kept}"
            )
        self._tells_soft = found[0] > 0
        if found[1] != wanted:
            log.info("the driver rounds %d MiB on %s to %d", memory_mib, cgroup, found[1] // MIB)

    def is_kept(self, handle: Any, cgroup: str, memory_mib: int) -> bool:
        """Say whether a cgroup's limit is as it was set: hard within what drivers round, and reserved.

        A driver that has shown no reservation yet, also right after one was made, is not asked for it.
        """
        found = self.read(handle, cgroup)
        if found is None or not _is_about(found[1], memory_mib * MIB):
            return False
        self._tells_soft = self._tells_soft or found[0] > 0
        return found[0] > 0 or not self._tells_soft

    def loosen(self, handle: Any, cgroup: str) -> None:
        """Give back what a cgroup reserved, keeping its hard limit; nothing there is success."""
        found = self.read(handle, cgroup)
        if found is not None and found[0]:
            self._unset(handle, cgroup, found[1])

    def clear(self, handle: Any, cgroup: str) -> None:
        """Take both limits away; nothing there is success."""
        found = self.read(handle, cgroup)
        if found is not None and found != (0, NO_LIMIT):
            self.loosen(handle, cgroup)
            self._unset(handle, cgroup, NO_LIMIT)

    def read(self, handle: Any, cgroup: str) -> tuple[int, int] | None:
        """Return (soft, hard) in bytes, None where nothing is set or the cgroup is gone."""
        if not cgroup:
            return None
        asked = self._asked(cgroup)
        try:
            self._calls.do(GET, handle, asked, doing=f"reading the memory limit of {cgroup}")
        except NvmlLikeError as no:
            if no.code in NOTHING:
                return None
            raise
        return int(asked.softLimit), int(asked.hardLimit)

    def _pass_on(self, cgroup: str) -> None:
        """Let the kernel's dmem controller reach a cgroup, where the kernel has one; raises NotOfferedError.

        Only what is above the cgroup changes, and nothing is taken from it: others keep what they have.
        """
        try:
            if DMEM not in self._read(CONTROLLERS).split():
                return
        except OSError:
            return
        above = ROOT
        for name in ["", *cgroup.removeprefix(ROOT).strip("/").split("/")[:-1]]:
            above = f"{above}/{name}" if name else above
            path, why = f"{above}/{PASSED_ON}", ""
            try:
                if DMEM not in self._read(path).split():
                    self._write(path, f"+{DMEM}")
                    why = "" if DMEM in self._read(path).split() else "the kernel did not take it"
            except OSError as no:
                why = str(no)
            if why:
                raise NotOfferedError(
                    f"memory limits need the dmem controller below {above} ({why}); let root write +{DMEM} into"
                    f" {path}, or ask for another sharing mode"
                )

    def _unset(self, handle: Any, cgroup: str, hard: int) -> None:
        try:
            self._set(handle, cgroup, 0, hard)
        except NvmlLikeError as no:
            # A cgroup without limits of its own reads its ancestor's; one that is gone now ended in between.
            if no.code != errors.NOT_FOUND and (
                no.code not in NOTHING or self.read(handle, cgroup) is not None
            ):
                raise

    def _set(self, handle: Any, cgroup: str, soft: int, hard: int) -> None:
        limits = self._calls.library.c_nvmlSetMemoryLimits_v1_t(
            nameSpace=cgroup.encode(), softLimit=soft, hardLimit=hard
        )
        try:
            self._calls.do(SET, handle, limits, doing=f"limiting the memory of {cgroup}")
        except NvmlLikeError as no:
            if no.code == errors.FUNCTION_NOT_FOUND:
                raise NotOfferedError("this driver has no memory limits; install 615 or newer") from no
            if no.code == errors.NOT_FOUND:
                raise NvmlLikeError(
                    no.code, f"{no.detail}; the unit is gone, or its cgroup has no dmem"
                ) from no
            raise

    def _asked(self, cgroup: str) -> Any:
        known = getattr(self._calls.library, "c_nvmlGetMemoryLimits_v1_t", None)
        return None if known is None else known(nameSpace=cgroup.encode())


def _is_about(found: int, wanted: int) -> bool:
    return wanted <= found <= wanted * MOST_ROUNDING
