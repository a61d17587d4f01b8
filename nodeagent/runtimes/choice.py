"""Which ways in a host has: units and containers together, one of them, or variables alone."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import Exists, Read, read_text
from nodeagent.host.shell import Shell
from nodeagent.runtimes.base import (
    ISOLATED,
    RUNTIME,
    Key,
    LeaseEntrance,
    LeaseGrant,
    Runtime,
    RuntimeRefusedError,
)
from nodeagent.runtimes.cdi import FOLDER, CdiSpecs, mounts_of
from nodeagent.runtimes.engines import podman_version
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.runtimes.systemd import SystemdRuntime

log = logging.getLogger(__name__)

RUNTIMES: Final = ("auto", "systemd", "cdi", "plain")


class RuntimeMissingError(Exception):
    """The runtime that the operator named cannot be used on this host; the sentence says why."""


class CombinedRuntime:
    """Several runtimes as one. The first is the boundary: it opens first, closes last and alone decides.

    The others are extra: one that refuses a lease is left out of its entrance, and tried again when the lease is
    opened again.
    """

    def __init__(self, runtimes: Sequence[Runtime]) -> None:
        """Join runtimes, strictest first."""
        if not runtimes:
            raise ValueError("a host has at least one way in")
        self._runtimes = tuple(runtimes)
        self.name = "+".join(one.name for one in runtimes)
        self.is_isolating = runtimes[0].is_isolating
        self._left_out: set[tuple[str, Key]] = set()
        self._said: set[tuple[str, str]] = set()

    def why_not(self) -> str:
        """Return what is missing for the first of them; the others are extra."""
        return self._runtimes[0].why_not()

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Open all doors that can be opened; the words of the first win, its cgroup is the lease's."""
        first, *others = self._runtimes
        entrance, names = first.open(grant), [first.name]
        words: dict[str, str] = {}
        for one in others:
            try:
                words |= one.open(grant).words
            except RuntimeRefusedError as no:
                self._leave_out(one, grant.key, no)
                continue
            self._left_out.discard((one.name, grant.key))
            names.append(one.name)
        words |= entrance.words
        words |= {RUNTIME: "+".join(names), ISOLATED: "yes" if self.is_isolating else "no"}
        return LeaseEntrance(words, entrance.cgroup)

    def _leave_out(self, extra: Runtime, key: Key, no: RuntimeRefusedError) -> None:
        """Remember that a lease does without an extra door, and say so once per reason."""
        self._left_out.add((extra.name, key))
        reason = re.sub(rf"\b{re.escape(key[0])}\b", "", str(no))
        if (extra.name, reason) not in self._said:
            self._said.add((extra.name, reason))
            log.warning("%s is left out of lease %s and of others like it: %s", extra.name, key[0], no)

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return why the first door would refuse: a lease does without the others."""
        return self._runtimes[0].would_refuse(grant)

    def close(self, key: Key, *, kill: bool) -> None:
        """Close all doors, the last one first; one that fails keeps none of the others open."""
        self._left_out -= {(one.name, key) for one in self._runtimes}
        refused: list[RuntimeRefusedError] = []
        for one in reversed(self._runtimes):
            try:
                one.close(key, kill=kill)
            except RuntimeRefusedError as no:
                refused.append(no)
        if refused:
            raise refused[-1]

    def pids(self, key: Key) -> list[int]:
        """Return the processes behind any door."""
        return sorted({pid for one in self._runtimes for pid in one.pids(key)})

    def known(self) -> list[Key]:
        """Return every lease that is open behind any door."""
        return sorted({key for one in self._runtimes for key in one.known()})

    def whole(self) -> list[Key]:
        """Return the leases that are open behind the first door and every other that did not refuse them."""
        first, *others = self._runtimes
        found = set(first.whole())
        for one in others:
            there = set(one.whole())
            found = {key for key in found if key in there or (one.name, key) in self._left_out}
        return sorted(found)

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease of a process, by the strictest door that knows it."""
        found = (one.lease_of(pid) for one in self._runtimes)
        return next((key for key in found if key is not None), None)


def choose(
    name: str,
    shell: Shell,
    *,
    run_dir: Path,
    boot_id: str,
    account: Callable[[str], Account] = account_of,
    read: Read = read_text,
    exists: Exists = os.path.exists,
    cdi_folder: Path = FOLDER,
    looks_only: bool = False,
) -> Runtime:
    """Return the way in that an operator named, for "auto" the strictest that the host has.

    ``looks_only``: leases are only looked at, so nothing of an earlier boot is removed. Raises
    RuntimeMissingError where the named one cannot be used, ValueError for an unknown name.
    """
    if name not in RUNTIMES:
        raise ValueError(f"unknown runtime {name!r}; choose one of {', '.join(RUNTIMES)}")
    systemd = SystemdRuntime(shell, read=read, exists=exists, account=account)
    cdi = CdiSpecs(
        cdi_folder,
        boot_id=boot_id,
        mounts=mounts_of(shell, exists),
        read=read,
        looks_only=looks_only,
        podman=lru_cache(maxsize=1)(lambda: podman_version(shell)),
    )
    plain = PlainRuntime(run_dir, account=account)
    return pick(name, systemd, cdi, plain)


def pick(name: str, systemd: Runtime, cdi: Runtime, plain: Runtime) -> Runtime:
    """Return what the host has of these: the rules of ``choose`` without the host."""
    no_units, no_containers = systemd.why_not(), cdi.why_not()
    if name == "plain":
        return plain
    if name == "systemd":
        if no_units:
            raise RuntimeMissingError(f"leases cannot be units on this host: {no_units}")
        return systemd
    if name == "cdi":
        if no_containers:
            raise RuntimeMissingError(f"leases cannot be given to containers on this host: {no_containers}")
        return CombinedRuntime([cdi, plain])
    if not no_units:
        return systemd if no_containers else CombinedRuntime([systemd, cdi])
    log.warning("leases are not isolated on this host: %s", no_units)
    return plain if no_containers else CombinedRuntime([cdi, plain])


def shows_files(runtime: Runtime) -> bool:
    """Say whether holders see files under another path (``LeaseGrant.binds``): only where containers are the way in."""
    return runtime.name.partition("+")[0] == CdiSpecs.name


def has_units(runtime: Runtime) -> bool:
    """Say whether leases are opened in units, which have a cgroup that limits bind to: only systemd has those."""
    return runtime.name.partition("+")[0] == SystemdRuntime.name
