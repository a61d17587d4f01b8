"""MIG sizes of a device: read from the device itself; the table of boards fills in only what needs root."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.values import text
from nodeagent.protocol.boards import BoardModel, BoardProfile
from nodeagent.protocol.messages import ProfileFact

# More than nvml.h has in any version so far; the driver itself says where its list ends.
MOST_ENUMS: Final = 64


@dataclass(frozen=True, slots=True)
class MigSize:
    """One MIG size. ``id`` is the driver's own number, ``slices`` counts compute slices.

    ``fact`` is None where its legal places are not known: then it can be recognised, not offered. ``widths`` are
    the slices of each compute instance profile inside it, by profile id, once the device has been asked: they lie
    with the size of one device because the numbers mean other sizes on other boards.
    """

    id: int
    name: str
    slices: int
    most: int
    fact: ProfileFact | None
    widths: dict[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class MigSizes:
    """The sizes of one device. ``refused``: how the driver answers who asks for places, 0 to who may manage them.

    ``ended``: how it answered where its list of sizes ended, 0 where it named all that there could be.
    """

    all: tuple[MigSize, ...] = ()
    refused: int = 0
    ended: int = 0

    @property
    def facts(self) -> tuple[ProfileFact, ...]:
        """Return what can be offered."""
        return tuple(size.fact for size in self.all if size.fact is not None)

    def named(self, name: str) -> MigSize | None:
        """Return the size of this name, None when the device has none with known places."""
        return next((size for size in self.all if size.name == name and size.fact is not None), None)


def read_sizes(calls: NvmlCalls, handle: Any, known: BoardModel | None) -> MigSizes:
    """Return the MIG sizes of a device; works with MIG off. None on a board without MIG."""
    found: list[MigSize] = []
    refused = ended = 0
    for enum in range(MOST_ENUMS):
        try:
            info = _info(calls, handle, enum)
        except NvmlLikeError as no:
            if no.code == errors.NOT_SUPPORTED:
                continue
            ended = no.code
            break
        usual = _usual(known, enum, int(info.sliceCount))
        places, code = _places(calls, handle, int(info.id), usual)
        refused = refused or code
        found.append(_size(info, places, usual))
    return MigSizes(tuple(found), refused, ended)


def _info(calls: NvmlCalls, handle: Any, enum: int) -> Any:
    """Return what the driver says of one size; drivers before 470 know only the form without a name."""
    doing = "reading the MIG sizes"
    try:
        return calls.do("nvmlDeviceGetGpuInstanceProfileInfo", handle, enum, doing=doing)
    except NvmlLikeError as no:
        if no.code != errors.FUNCTION_NOT_FOUND:
            raise
    return calls.do("nvmlDeviceGetGpuInstanceProfileInfo", handle, enum, 1, doing=doing)


def _usual(known: BoardModel | None, enum: int, slices: int) -> BoardProfile | None:
    """Return the table's row: by board, size and attributes (nvml.h's constant names both), never by id."""
    rows = () if known is None else known.profiles
    return next((p for p in rows if (p.nvml_enum, p.compute_slices) == (enum, slices)), None)


def _places(
    calls: NvmlCalls, handle: Any, profile_id: int, usual: BoardProfile | None
) -> tuple[list[tuple[int, int]], int]:
    """Return (start, size) of every legal place, and how the driver refused to tell them (0: it did)."""
    name, number, doing = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0), "reading MIG places"
    try:
        calls.do(name, handle, profile_id, None, ctypes.byref(number), doing=doing)
        rows = (calls.library.c_nvmlGpuInstancePlacement_t * number.value)()
        calls.do(name, handle, profile_id, rows, ctypes.byref(number), doing=doing)
        told = sorted((int(row.start), int(row.size)) for row in rows[: number.value])
        return told, 0
    except NvmlLikeError as no:
        return ([] if usual is None else [(start, usual.memory_slices) for start in usual.starts]), no.code


def _size(info: Any, places: list[tuple[int, int]], usual: BoardProfile | None) -> MigSize:
    told = text(getattr(info, "name", None)).removeprefix("MIG ")
    name = told or (usual.name if usual is not None else f"profile-{info.id}")
    fact = None
    if places:
        fact = ProfileFact(
            name=name,
            profile_id=int(info.id),
            slices=places[0][1],
            starts=tuple(start for start, _ in places),
            memory_mib=int(info.memorySizeMB),
            sm_count=int(info.multiprocessorCount) or None,
            max_instances=int(info.instanceCount),
        )
    return MigSize(int(info.id), name, int(info.sliceCount), int(info.instanceCount), fact)
