"""What every call of the simulated library shares: handles, refusals, faults, the moments before and after a change."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import pynvml

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.simulation.hardware import ComputeInstance, GpuInstance
from nodeagent.simulation.machine.device import NvmlDevice
from nodeagent.simulation.machine.host import SimulatedHost

UNINITIALIZED = 1
INSUFFICIENT_SIZE = 7

GPU, MIG, GI, CI = "gpu", "mig", "gi", "ci"
_POINTERS = {
    GPU: pynvml.c_nvmlDevice_t,
    MIG: pynvml.c_nvmlDevice_t,
    GI: pynvml.c_nvmlGpuInstance_t,
    CI: pynvml.c_nvmlComputeInstance_t,
}
_cast, _void = ctypes.cast, ctypes.c_void_p

Part = GpuInstance | ComputeInstance
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="NvmlSession")


class KnownHandle(NamedTuple):
    """What a handle stands for: a device of one generation, or a part of it."""

    kind: str
    device: NvmlDevice
    generation: int
    part: Part | None


def refuse(code: int) -> Exception:
    """Return the exception that pynvml raises for a code."""
    error: Exception = pynvml.NVMLError(code)
    return error


def reads(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method a call of the library that changes nothing."""
    name = function.__name__

    @wraps(function)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        host = self.host
        host.enter(name, False)
        with host.lock:
            if not self.is_open:
                raise refuse(UNINITIALIZED)
            try:
                return function(self, *args, **kwargs)
            except NvmlLikeError as no:
                raise refuse(no.code) from no

    return call


def changes(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method a call that changes the host: the change lies between the two moments told to its hook."""
    name = function.__name__
    before, after = f"{name}.before", f"{name}.after"

    @wraps(function)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        host = self.host
        host.enter(name, True)
        with host.lock:
            if not self.is_open:
                raise refuse(UNINITIALIZED)
            host.on_change(before)
            try:
                answer = function(self, *args, **kwargs)
            except NvmlLikeError as no:
                raise refuse(no.code) from no
            host.on_change(after)
            return answer

    return call


def number_of(pointer: Any) -> int | None:
    """Return the number inside a handle; None for NULL and for what is no pointer."""
    try:
        return ctypes.addressof(pointer.contents)
    except (AttributeError, TypeError, ValueError):
        return None


def target(reference: Any, kind: Any) -> Any:
    """Return what ``byref(x)`` or ``pointer(x)`` points at; INVALID_ARGUMENT for anything else.

    The real wrappers hand such arguments on untouched, so a structure instead of its address is a mistake.
    """
    found = getattr(reference, "_obj", None)
    if found is None and isinstance(reference, ctypes._Pointer) and reference:
        found = reference.contents
    if not isinstance(found, kind):
        raise refuse(errors.INVALID_ARGUMENT)
    return found


def rows(reference: Any, kind: Any) -> Any:
    """Return an array of structures given as such or by reference."""
    found = getattr(reference, "_obj", reference)
    if not isinstance(found, ctypes.Array) or found._type_ is not kind:
        raise refuse(errors.INVALID_ARGUMENT)
    return found


def hand_over(found: Sequence[Any], array: Any, kind: Any, count: Any) -> None:
    """Write what was found into a caller's array and its number beside it, as NVML lists things.

    An array that is too short is refused with INSUFFICIENT_SIZE and left as it was.
    """
    table, number = rows(array, kind), target(count, pynvml.c_uint)
    if len(table) < len(found):
        raise refuse(INSUFFICIENT_SIZE)
    for at, one in enumerate(found):
        table[at] = one
    number.value = len(found)


def hand_over_places(legal: Sequence[tuple[int, int]], array: Any, kind: Any, count: Any) -> None:
    """Write places (start, size) into a caller's array, or their number alone where no array is given.

    Where the array, or the room that ``count`` names, is too small, INSUFFICIENT_SIZE tells how many there are.
    """
    number, table = target(count, pynvml.c_uint), None if array is None else rows(array, kind)
    room, number.value = number.value, len(legal)
    if table is None:
        return
    if min(room, len(table)) < len(legal):
        raise refuse(INSUFFICIENT_SIZE)
    for row, (start, size) in zip(table, legal, strict=False):
        row.start, row.size = start, size


class NvmlSession:
    """One process's use of the library: its handles die with it, the host does not."""

    def __init__(self, host: SimulatedHost) -> None:
        """Open the library on a host; ``nvmlInit`` comes first, as with the real one."""
        self.host = host
        self.opened = 0
        self._is_dead = False
        self._known: dict[int, KnownHandle] = {}
        self._pointers: dict[tuple[str, object, int], Any] = {}
        host.join(self)

    @property
    def is_open(self) -> bool:
        """Whether nvmlInit was called oftener than nvmlShutdown."""
        return self.opened > 0

    def close(self) -> None:
        """End with the process: handles are stale, whoever waits for events is woken."""
        with self.host.lock:
            self.opened = 0
            self._is_dead = True
            self.clear()

    def clear(self) -> None:
        """Drop every handle."""
        self._known.clear()
        self._pointers.clear()

    def handle(self, kind: str, device: NvmlDevice, part: Part | None = None) -> Any:
        """Return the handle of a thing, the same one every time."""
        key = (kind, part or device, device.generation)
        found = self._pointers.get(key)
        if found is None:
            token = self.host.new_token()
            found = self._pointers[key] = _cast(_void(token), _POINTERS[kind])
            self._known[token] = KnownHandle(kind, device, device.generation, part)
        return found

    def forget(self, kind: str, device: NvmlDevice, part: Part) -> None:
        """Drop the handle of what is gone."""
        pointer = self._pointers.pop((kind, part, device.generation), None)
        if pointer is not None:
            self._known.pop(number_of(pointer) or 0, None)

    def known(self, pointer: Any, *kinds: str) -> KnownHandle:
        """Return what a handle stands for; INVALID_ARGUMENT when stale or of another kind, then GPU_IS_LOST."""
        found = self._known.get(number_of(pointer) or 0)
        if found is None or found.kind not in kinds or found.generation != found.device.generation:
            raise refuse(errors.INVALID_ARGUMENT)
        if found.part is not None and found.part.is_stale:
            raise refuse(errors.INVALID_ARGUMENT)
        if found.device.gpu.is_lost:
            raise refuse(errors.GPU_IS_LOST)
        return found

    def whole(self, pointer: Any) -> NvmlDevice:
        """Return the device of a handle; NOT_SUPPORTED for a MIG device, which has no such figure."""
        found = self.known(pointer, GPU, MIG)
        if found.kind == MIG:
            raise refuse(errors.NOT_SUPPORTED)
        return found.device

    def part(self, pointer: Any) -> tuple[NvmlDevice, ComputeInstance | None]:
        """Return the device of a handle, with the compute instance when it is a MIG device."""
        found = self.known(pointer, GPU, MIG)
        return found.device, found.part if isinstance(found.part, ComputeInstance) else None

    def instance(self, pointer: Any) -> tuple[NvmlDevice, GpuInstance]:
        """Return the GPU instance of a handle."""
        found = self.known(pointer, GI)
        if not isinstance(found.part, GpuInstance):
            raise refuse(errors.INVALID_ARGUMENT)
        return found.device, found.part

    def compute(self, pointer: Any) -> tuple[NvmlDevice, ComputeInstance]:
        """Return the compute instance of a handle."""
        found = self.known(pointer, CI)
        if not isinstance(found.part, ComputeInstance):
            raise refuse(errors.INVALID_ARGUMENT)
        return found.device, found.part

    def require_root(self) -> None:
        """Refuse changes by anybody else."""
        if not self.host.is_root:
            raise refuse(errors.NO_PERMISSION)
