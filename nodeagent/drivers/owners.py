"""Whose a process on a shared device is, and for which processes a share waits before it is called clean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nodeagent.drivers.base import ProcessFact
from nodeagent.drivers.shares import WHOLE, HeldShare
from nodeagent.runtimes.cdi import is_engines, told_lease

CGROUPS: Final = "/sys/fs/cgroup"

Read = Callable[[str], str]
Excuse = Callable[[ProcessFact], bool]


def cgroup_of(read: Read, pid: int) -> str:
    """Return the cgroup of a process below the mount point, "" where it cannot be read."""
    try:
        lines = read(f"/proc/{pid}/cgroup").splitlines()
    except (OSError, ValueError):
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def is_below(path: str, cgroup: str) -> bool:
    """Say whether a path is a cgroup (absolute, or below the mount point) or lies below it; "" holds nothing."""
    wanted = cgroup.removeprefix(CGROUPS).rstrip("/")
    return bool(wanted) and (path == wanted or path.startswith(f"{wanted}/"))


def own(
    share: HeldShare, others: Sequence[HeldShare], listed: Sequence[ProcessFact], read: Read
) -> list[ProcessFact]:
    """Return the processes of a device that are a share's as far as anybody knows: these are told and ended.

    One with a cgroup has those inside, and those of containers that name its lease; a whole device, and a share
    without a cgroup, have what no other share accounts for.
    """
    if share.mode == WHOLE or not share.cgroup:
        return left_on(share, others, listed, read)
    return [process for process in listed if _owns(share, *_traits(read, process.pid))]


def left_on(
    share: HeldShare,
    others: Sequence[HeldShare],
    listed: Sequence[ProcessFact],
    read: Read,
    is_excused: Excuse = lambda process: False,
) -> list[ProcessFact]:
    """Return the processes that keep a share from being clean: its own, and those that no other share accounts for.

    A process that lies in nobody's unit and names no lease may be anybody's, so every share of the device that ends
    waits for it. No two shares wait for each other: what one of them accounts for holds up that one alone, and
    whatever else runs ends without any of them. ``is_excused`` are programs of the host.
    """
    found = []
    for process in listed:
        traits = _traits(read, process.pid)
        is_anybodys = not any(_owns(other, *traits) for other in others)
        if _owns(share, *traits) or (is_anybodys and not is_excused(process)):
            found.append(process)
    return found


def _traits(read: Read, pid: int) -> tuple[str, str]:
    """Return a process's cgroup, and lease and generation as a container of this host tells them, "" without."""
    path = cgroup_of(read, pid)
    told = told_lease(read, pid) if is_engines(path) else None
    return path, "" if told is None else f"{told[0]}.{told[1]}"


def _owns(share: HeldShare, path: str, told: str) -> bool:
    # An owner is named lease.generation.number: see works.Work.owner.
    return is_below(path, share.cgroup) or (bool(told) and share.owner.rpartition(".")[0] == told)
