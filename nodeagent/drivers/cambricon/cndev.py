"""The few calls of Cambricon's CNDEV library that cnmon has no published command for: sMLU and processes.

Structures after ``cndev.h`` (API version 6) and their use in Cambricon's own Kubernetes device plugin
(github.com/Cambricon/cambricon-k8s-device-plugin, Apache-2.0); see docs/vendors.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.vendor import MIB, clean, code_of

API: Final = 6
MOST: Final = 128
LIBRARIES: Final = ("libcndev.so", "/usr/local/neuware/lib64/libcndev.so", "/usr/lib64/libcndev.so")


class SmluMode(ctypes.Structure):
    """``cndevSMLUMode_t``; ``cndevMimMode_t`` has the same form."""

    _fields_ = [("version", ctypes.c_int), ("mode", ctypes.c_int)]


class SmluSet(ctypes.Structure):
    """``cndevSMluSet_t``: percent of the device's compute, bytes of its memory."""

    _fields_ = [("version", ctypes.c_int), ("quota", ctypes.c_uint32), ("memory", ctypes.c_uint64)]


class SmluInfo(ctypes.Structure):
    """``cndevSMluInfo_t``."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("version", "profile_id", "instance_id")),
        ("uuid", ctypes.c_uint8 * 37),
        *((name, ctypes.c_int) for name in ("domain", "bus", "device", "function")),
        *((name, ctypes.c_char * 100) for name in ("profile_name", "name", "node")),
        ("quota", ctypes.c_uint32 * 2),
        ("memory", ctypes.c_uint64 * 2),
        ("reserved", ctypes.c_uint32 * 128),
    ]


class ProfileIds(ctypes.Structure):
    """``cndevSMluProfileIdInfo_t``."""

    _fields_ = [("version", ctypes.c_int), ("count", ctypes.c_int), ("ids", ctypes.c_int * MOST)]


class ProfileInfo(ctypes.Structure):
    """``cndevSMluProfileInfo_t``."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("version", "profile_id")),
        ("name", ctypes.c_char * 100),
        *((name, ctypes.c_uint32) for name in ("total", "left")),
        ("quota", ctypes.c_uint32 * 2),
        ("memory", ctypes.c_uint64 * 2),
    ]


class ProcessInfo(ctypes.Structure):
    """``cndevProcessInfo_t``: memory in KiB."""

    _fields_ = [
        *(("version", ctypes.c_int), ("pid", ctypes.c_uint32)),
        *((name, ctypes.c_uint64) for name in ("physical_kib", "virtual_kib")),
    ]


@dataclass(frozen=True, slots=True)
class SmluInstance:
    """One sMLU instance; ``quota`` in percent, ``node`` its device node."""

    name: str
    node: str
    quota: int
    memory_mib: int


class Cndev:
    """CNDEV with its refusals as NvmlLikeError. ``library`` has the names of libcndev.so."""

    def __init__(self, library: Any = None) -> None:
        """Load and start the library; raises NvmlLikeError when there is none."""
        self._library = library or _load()
        self._call("cndevInit", ctypes.c_int(0))

    def is_on(self, device: int, mode: str) -> bool:
        """Say whether a device is in a mode: "SMLU", or "Mim"."""
        found = SmluMode(API)
        self._call(f"cndevGet{mode}Mode", _ref(found), self._device(device))
        return bool(found.mode)

    def instances(self, device: int) -> list[SmluInstance]:
        """Return the sMLU instances of a device."""
        rows = self._rows("cndevGetAllSMluInstanceInfo", SmluInfo, device, ctypes.c_int(MOST))
        return [
            SmluInstance(
                name=_text(row.name) or f"#{row.instance_id}",
                node=_text(row.node),
                quota=int(row.quota[0]),
                memory_mib=int(row.memory[0]) // MIB,
            )
            for row in rows
        ]

    def create(self, device: int, quota: int, memory_mib: int, name: str) -> None:
        """Make an instance, from a profile of exactly this size that exists already or a new one."""
        profile = self._profile(device, quota, memory_mib)
        if profile is None:
            wanted, made = SmluSet(API, quota, memory_mib * MIB), ctypes.c_int(-1)
            self._call("cndevCreateSMluProfileInfo", _ref(wanted), _ref(made), self._device(device))
            profile = made.value
        instance, label = ctypes.c_int(0), ctypes.c_char_p(name.encode())
        self._call(
            "cndevCreateSMluInstanceByProfileId",
            _ref(instance),
            ctypes.c_uint(profile),
            self._device(device),
            label,
        )

    def destroy(self, device: int, name: str) -> None:
        """Remove an instance by its name."""
        self._call(
            "cndevDestroySMluInstanceByInstanceName", self._device(device), ctypes.c_char_p(name.encode())
        )

    def processes(self, device: int) -> list[ProcessFact]:
        """Return the processes on a device."""
        rows = self._rows("cndevGetProcessInfo", ProcessInfo, device, ctypes.c_uint(MOST))
        return [ProcessFact(int(row.pid), int(row.physical_kib) // 1024) for row in rows]

    def _profile(self, device: int, quota: int, memory_mib: int) -> int | None:
        ids, handle = ProfileIds(API), self._device(device)
        self._call("cndevGetSMluProfileIdInfo", _ref(ids), handle)
        for number in list(ids.ids)[: max(0, min(ids.count, MOST))]:
            info = ProfileInfo(API)
            self._call("cndevGetSMluProfileInfo", _ref(info), ctypes.c_int(number), handle)
            if info.quota[0] == quota and info.memory[0] == memory_mib * MIB and info.left:
                return int(number)
        return None

    def _rows(self, name: str, kind: type[ctypes.Structure], device: int, count: Any) -> list[Any]:
        rows = (kind * MOST)()
        for row in rows:
            row.version = API
        self._call(name, _ref(count), rows, self._device(device))
        if not 0 <= count.value <= MOST:
            raise NvmlLikeError(errors.UNKNOWN, f"{name} announced {count.value} entries")
        return list(rows)[: count.value]

    def _device(self, index: int) -> Any:
        handle = ctypes.c_int(0)
        self._call("cndevGetDeviceHandleByIndex", ctypes.c_int(index), _ref(handle))
        return handle

    def _call(self, name: str, *args: Any) -> None:
        function: Callable[..., int] | None = getattr(self._library, name, None)
        if function is None:
            raise NvmlLikeError(
                errors.FUNCTION_NOT_FOUND,
                f"the installed CNDEV library lacks {name}: bring the MLU driver up to date",
            )
        code = function(*args)
        if code:
            said = self._said(code)
            raise NvmlLikeError(code_of(said), f"{name} failed: {said}")

    def _said(self, code: int) -> str:
        function = getattr(self._library, "cndevGetErrorString", None)
        if function is None:
            return f"error {code}"
        said = function(ctypes.c_int(code))
        return clean(said.decode(errors="replace") if isinstance(said, bytes) else said) or f"error {code}"


def _load() -> Any:
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "cndevGetErrorString"):
            library.cndevGetErrorString.restype = ctypes.c_char_p
        return library
    raise NvmlLikeError(
        errors.LIBRARY_NOT_FOUND, "libcndev.so is not on this host: install Cambricon's CNToolkit for shares"
    )


def _ref(value: Any) -> Any:
    return ctypes.byref(value)


def _text(value: bytes) -> str:
    return clean(value.split(b"\x00", 1)[0].decode(errors="replace"), 100)
