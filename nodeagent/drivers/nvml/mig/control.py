"""MIG instances of one device: listed, made at an exact place, removed, and the mode that allows them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.values import text
from nodeagent.drivers.nvml.mig.profiles import MigSize, MigSizes

# Something else may change the device while it is being listed; then it is listed again.
LOOKS: Final = 3
MOVED: Final = frozenset({errors.INVALID_ARGUMENT, errors.NOT_FOUND})
# What these codes answer to a removal: there is nothing (any more), or MIG is off and so nothing can be.
GONE: Final = frozenset({errors.NOT_FOUND, errors.NOT_SUPPORTED})
MIG_ON: Final = 1


@dataclass(frozen=True, slots=True)
class MigCompute:
    """A compute instance: its MIG device is what CUDA sees. ``is_all`` of its GPU instance, or a part."""

    ci_id: int
    uuid: str
    handle: Any
    is_all: bool


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance with what is inside it; nothing inside means that nobody can use it yet."""

    gi_id: int
    size: MigSize
    start: int
    span: int
    inside: tuple[MigCompute, ...] = ()


class MigControl:
    """MIG of all devices, by their handles. Nothing is remembered between calls but ``MigSize.widths``."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls

    def is_on(self, handle: Any) -> bool:
        """Say whether MIG is on now; a board without it has it off. Raises NvmlLikeError where it cannot be told."""
        modes = self.modes(handle)
        return modes is not None and modes[0] == MIG_ON

    def modes(self, handle: Any) -> tuple[int, int] | None:
        """Return (current, pending), None on a board without MIG."""
        try:
            current, pending = self._calls.do("nvmlDeviceGetMigMode", handle, doing="reading the MIG mode")
        except NvmlLikeError as no:
            if no.code in (errors.NOT_SUPPORTED, errors.FUNCTION_NOT_FOUND):
                return None
            raise
        return int(current), int(pending)

    def instances(self, handle: Any, sizes: MigSizes) -> list[MigInstance]:
        """Return every GPU instance, whoever made it; raises NO_PERMISSION where listing needs root."""
        for look in range(LOOKS):
            try:
                return self._list(handle, sizes) if self.is_on(handle) else []
            except NvmlLikeError as no:
                if no.code not in MOVED or look == LOOKS - 1:
                    raise
        raise AssertionError("unreachable: the last look returns or raises")

    def create(self, handle: Any, sizes: MigSizes, size: MigSize, start: int) -> MigInstance:
        """Make an instance with one compute instance over all of it; succeeds when a new look finds just that."""
        span = self._require_place(size, start)
        doing = f"making {size.name} at {start}"
        place = self._calls.library.c_nvmlGpuInstancePlacement_t(start, span)
        gi = self._calls.do(
            "nvmlDeviceCreateGpuInstanceWithPlacement", handle, size.id, ctypes.byref(place), doing=doing
        )
        try:
            width = self._width_of_all(gi, size)
            self._calls.do("nvmlGpuInstanceCreateComputeInstance", gi, width, doing=doing)
            made = self._made(handle, sizes, gi, doing)
        except NvmlLikeError as no:
            raise NvmlLikeError(
                no.code, f"{no.detail}; a GPU instance at {start} was made and is left, not usable as it is"
            ) from no
        if (made.size.id, made.start, made.span) != (size.id, start, span) or not _is_usable(made):
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"{doing}: the driver made {made.size.name} at {made.start} instead, which is left for a look",
            )
        return made

    def destroy(self, handle: Any, sizes: MigSizes, gi_id: int, ci_id: int | None) -> None:
        """Remove a compute instance (None: there must be none) and its GPU instance; gone already is success.

        Raises IN_USE while a process, or a compute instance that was not named, is on it.
        """
        found = self._find(handle, sizes, gi_id)
        if found is None:
            return
        others = [one for one in found.inside if one.ci_id != ci_id]
        if others:
            raise NvmlLikeError(errors.IN_USE, f"{others[0].uuid} is on the same GPU instance")
        doing = f"removing {found.size.name} at {found.start}"
        gi = self._unless_gone("nvmlDeviceGetGpuInstanceById", handle, gi_id, doing=doing)
        if gi is None:
            return
        if found.inside:
            ci = self._unless_gone("nvmlGpuInstanceGetComputeInstanceById", gi, ci_id, doing=doing)
            if ci is not None:
                self._unless_gone("nvmlComputeInstanceDestroy", ci, doing=doing)
        self._unless_gone("nvmlGpuInstanceDestroy", gi, doing=doing)
        if self._find(handle, sizes, gi_id) is not None:
            raise NvmlLikeError(errors.IN_USE, f"{doing}: the driver agreed, yet it is still listed")

    def switch(self, handle: Any, enabled: bool) -> None:
        """Change the MIG mode of an empty device and read it back.

        Raises NvmlLikeError with the activation status that the driver returned: the call itself may succeed
        while the mode waits for the device to be idle (IN_USE) or reset (RESET_REQUIRED).
        """
        doing = f"switching MIG {'on' if enabled else 'off'}"
        status = int(self._calls.do("nvmlDeviceSetMigMode", handle, int(enabled), doing=doing))
        modes = self.modes(handle)
        if status == 0 and modes == (int(enabled), int(enabled)):
            return
        if status == errors.RESET_REQUIRED:
            raise NvmlLikeError(
                status,
                f"{doing}: it is set and takes effect when the GPU is reset (in a VM: when that is rebooted)",
            )
        if modes is not None and modes[0] != modes[1]:
            # Left pending it would change the device at some later restart that nobody connects with this lease.
            self._calls.code("nvmlDeviceSetMigMode", handle, modes[0])
        why = "another program holds the device open; stop monitors such as DCGM or nvidia-smi loops on it"
        raise NvmlLikeError(status or errors.IN_USE, f"{doing}: {why}")

    def _list(self, handle: Any, sizes: MigSizes) -> list[MigInstance]:
        inside = self._mig_devices(handle)
        found = []
        for size in sizes.all:
            for gi in self._gpu_instances(handle, size):
                info = self._calls.do("nvmlGpuInstanceGetInfo", gi, doing="reading a GPU instance")
                gi_id = int(info.id)
                mine = tuple(
                    MigCompute(ci_id, uuid, mig, self._is_all(gi, size, ci_id))
                    for ci_id, uuid, mig in sorted(inside.pop(gi_id, ()), key=lambda one: one[0])
                )
                found.append(
                    MigInstance(gi_id, size, int(info.placement.start), int(info.placement.size), mine)
                )
        if inside:
            raise NvmlLikeError(errors.NOT_FOUND, "a MIG device has no GPU instance that the driver lists")
        return sorted(found, key=lambda one: (one.start, one.gi_id))

    def _gpu_instances(self, handle: Any, size: MigSize) -> list[Any]:
        rows = (self._calls.library.c_nvmlGpuInstance_t * size.most)()
        number = ctypes.c_uint(size.most)
        try:
            self._calls.do(
                "nvmlDeviceGetGpuInstances",
                handle,
                size.id,
                rows,
                ctypes.byref(number),
                doing="listing GPU instances",
            )
        except NvmlLikeError as no:
            if no.code == errors.NOT_SUPPORTED:
                return []
            raise
        return list(rows[: number.value])

    def _mig_devices(self, handle: Any) -> dict[int, list[tuple[int, str, Any]]]:
        """Return (compute instance, uuid, handle) of every MIG device, by GPU instance. Indexes have gaps."""
        found: dict[int, list[tuple[int, str, Any]]] = {}
        doing = "listing MIG devices"
        for index in range(int(self._calls.do("nvmlDeviceGetMaxMigDeviceCount", handle, doing=doing))):
            try:
                mig = self._calls.do("nvmlDeviceGetMigDeviceHandleByIndex", handle, index, doing=doing)
            except NvmlLikeError as no:
                if no.code == errors.NOT_FOUND:
                    continue
                raise
            uuid = text(self._calls.do("nvmlDeviceGetUUID", mig, doing=doing))
            if not uuid.startswith("MIG-"):
                raise NvmlLikeError(errors.UNKNOWN, f"{doing}: {uuid!r} is not the UUID of a MIG device")
            gi_id = int(self._calls.do("nvmlDeviceGetGpuInstanceId", mig, doing=doing))
            ci_id = int(self._calls.do("nvmlDeviceGetComputeInstanceId", mig, doing=doing))
            found.setdefault(gi_id, []).append((ci_id, uuid, mig))
        return found

    def _is_all(self, gi: Any, size: MigSize, ci_id: int) -> bool:
        """Say whether a compute instance spans its GPU instance. One slice cannot be split."""
        if size.slices <= 1:
            return True
        doing = "reading a compute instance"
        ci = self._calls.do("nvmlGpuInstanceGetComputeInstanceById", gi, ci_id, doing=doing)
        info = self._calls.do("nvmlComputeInstanceGetInfo", ci, doing=doing)
        return self._widths_in(gi, size).get(int(info.profileId), 0) >= size.slices

    def _width_of_all(self, gi: Any, size: MigSize) -> int:
        """Return the id of the compute instance profile that takes all slices of a GPU instance."""
        for profile, slices in self._widths_in(gi, size).items():
            if slices == size.slices:
                return profile
        raise NvmlLikeError(
            errors.NOT_SUPPORTED, f"the driver lists no compute instance over all of {size.name}"
        )

    def _widths_in(self, gi: Any, size: MigSize) -> dict[int, int]:
        """Return the slices of each compute instance profile that a GPU instance can hold, by profile id."""
        if size.widths:
            return size.widths
        library = self._calls.library
        widths: dict[int, int] = {}
        for enum in range(library.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = self._calls.ask(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                gi,
                enum,
                library.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
            )
            if info is not None:
                widths.setdefault(int(info.id), int(info.sliceCount))
        if size.slices in widths.values():  # else a call failed, and the next look asks again
            size.widths.update(widths)
        return widths

    def _made(self, handle: Any, sizes: MigSizes, gi: Any, doing: str) -> MigInstance:
        gi_id = int(self._calls.do("nvmlGpuInstanceGetInfo", gi, doing=doing).id)
        found = self._find(handle, sizes, gi_id)
        if found is None:
            raise NvmlLikeError(errors.UNKNOWN, f"{doing}: the driver agreed, yet it is not listed")
        return found

    def _find(self, handle: Any, sizes: MigSizes, gi_id: int) -> MigInstance | None:
        return next((one for one in self.instances(handle, sizes) if one.gi_id == gi_id), None)

    def _unless_gone(self, name: str, *args: Any, doing: str) -> Any:
        """Return the answer of a call, None where what it names is gone."""
        try:
            return self._calls.do(name, *args, doing=doing)
        except NvmlLikeError as no:
            if no.code in GONE:
                return None
            raise

    @staticmethod
    def _require_place(size: MigSize, start: int) -> int:
        if size.fact is None or start not in size.fact.starts:
            places = "" if size.fact is None else ", ".join(map(str, size.fact.starts))
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT, f"{size.name} cannot start at {start}; it can at {places}"
            )
        return size.fact.slices


def _is_usable(made: MigInstance) -> bool:
    return len(made.inside) == 1 and made.inside[0].is_all
