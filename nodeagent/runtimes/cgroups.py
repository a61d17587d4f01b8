"""Who is inside a unit, as the kernel says: ``cgroup.procs`` of a whole subtree, ``/proc/<pid>/cgroup``."""

from __future__ import annotations

import contextlib
from typing import Final

from nodeagent.host.files import GONE, Exists, Folders, Read, read_text
from nodeagent.runtimes.base import RuntimeRefusedError

ROOT: Final = "/sys/fs/cgroup"
UNIFIED_MARK: Final = f"{ROOT}/cgroup.controllers"


class Cgroups:
    """The tree of cgroups of a host: version 2, or the tree named systemd where it is version 1."""

    def __init__(self, read: Read, folders: Folders, exists: Exists) -> None:
        self._read = read
        self._folders = folders
        self._exists = exists

    @property
    def is_unified(self) -> bool:
        """Say whether the host has version 2 alone, which limits on device memory need."""
        return self._exists(UNIFIED_MARK)

    def folder(self, path: str) -> str:
        """Return where a cgroup, by its path from the root, can be read."""
        return f"{ROOT}{path}" if self.is_unified else f"{ROOT}/systemd{path}"

    def pids(self, path: str) -> list[int]:
        """Return the processes in a cgroup and below it; none for one that is gone.

        Raises RuntimeRefusedError where they cannot be read: unknown is not none.
        """
        found: set[int] = set()
        waiting = [self.folder(path)]
        try:
            while waiting:
                folder = waiting.pop()
                found.update(self._procs(folder))
                waiting.extend(self._folders(folder))
        except OSError as no:
            raise RuntimeRefusedError(
                "unreadable", f"cannot read which processes are in {path}: {no}", is_passing=True
            ) from no
        return sorted(found)

    def _procs(self, folder: str) -> list[int]:
        try:
            return [int(line) for line in self._read(f"{folder}/cgroup.procs").split()]
        except OSError as no:
            if no.errno in GONE:
                return []
            raise

    def path_of(self, pid: int) -> str | None:
        """Return the cgroup of a process by its path from the root, None when it is gone or cannot be read.

        Version 2 is the line ``0::``, version 1 the line of the tree ``name=systemd`` (cgroups(7)).
        """
        try:
            lines = self._read(f"/proc/{pid}/cgroup").splitlines()
        except OSError:
            return None
        trees = {}
        for line in lines:
            number, _, rest = line.partition(":")
            name, _, path = rest.partition(":")
            trees["name=systemd" if "name=systemd" in name.split(",") else number] = path
        return trees.get("name=systemd") or trees.get("0") or None


def memory_of(cgroup: str, read: Read = read_text) -> tuple[int | None, bool]:
    """Return the most MiB that a lease's unit had (None: unknown), and whether the kernel ended a process for it."""
    peak: int | None = None
    with contextlib.suppress(OSError, ValueError):
        peak = -(-int(read(f"{cgroup}/memory.peak")) // 2**20)
    try:
        events = dict(line.split() for line in read(f"{cgroup}/memory.events").splitlines())
        return peak, int(events.get("oom_kill", 0)) > 0
    except (OSError, ValueError):
        return peak, False
