"""What of a lease goes into a container, and how Podman is started for its holder.

On hosts with units Podman is rootless: the holder's own, with the holder's own images. A pull is a unit of its own,
without any device, because the lease is not open yet; the container is started inside the lease's unit. Where holders
are played, Podman runs as the agent's own account, or as root for ``nobody``.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from nodeagent.containers.podman import ENGINE_PATH, ContainerBox, Podman
from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import passable
from nodeagent.host.shell import HostShell, ProgramError, Shell
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import CDI, Key
from nodeagent.runtimes.names import harmless, stem_of
from nodeagent.workloads.entry import EntryRefusedError, HolderCommand, PlayedEntry, start

log = logging.getLogger(__name__)

NAME_PREFIX: Final = "berth-"
LEASE_LABEL: Final = "berth.lease"
GENERATION_LABEL: Final = "berth.generation"
IMAGE_UNIT: Final = "berth-image-"
LONGEST_PULL_S: Final = 1800
REMOVED_WITHIN_S: Final = 20
# Unpacking takes some; an image made to take all of a host's memory or processes takes only these.
_LIMITS: Final = ("--property=MemoryMax=4G", "--property=TasksMax=1024")
# What a pull may open: a file system in user space where the kernel's own overlay cannot be had.
_PULLS_OPEN: Final = ("/dev/fuse rw",)
# Of the way in, not of the lease: a container has its own.
_OUTSIDE: Final = frozenset({"PATH", "SHELL"})


class LeaseContainers(Protocol):
    """How containers of leases are run on this host; calls may take some milliseconds."""

    podman: Podman

    def engine(self, user: str, why: str, words: Sequence[str]) -> HolderCommand:
        """Return what to start for a command of Podman outside any lease: a pull, a look, the end of a container.

        ``user`` is whose Podman, ``why`` a word that tells units apart. Raises EntryRefusedError.
        """
        ...

    def stop(self, unit: str) -> None:
        """End a unit that ``engine`` has started, or all that fit a pattern; nothing where there is none."""
        ...

    def store_of(self, user: str) -> str:
        """Return whose store of images a holder's jobs use: their own, or "" for one that all share."""
        ...

    def engine_env(self, user: str) -> dict[str, str]:
        """Return Podman's own environment where it is started in the lease; raises EntryRefusedError."""
        ...

    def box(self, record: LeaseRecord) -> ContainerBox:
        """Return what of a lease a container gets; raises EntryRefusedError."""
        ...


def container_name(key: Key) -> str:
    """Return the name of the one container of a lease."""
    return f"{NAME_PREFIX}{stem_of(key)}"


def remove_container(containers: LeaseContainers, record: LeaseRecord) -> None:
    """Forget a lease's container: one that was killed leaves its files behind. Safe to repeat; takes a while."""
    name = container_name(record.key)
    try:
        command = containers.engine(record.user, stem_of(record.key), containers.podman.remove(name))
        with start(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as one:
            try:
                one.wait(REMOVED_WITHIN_S)
            except subprocess.TimeoutExpired:
                one.kill()  # or the end of this block would wait for it, however long it takes
                if command.unit:
                    containers.stop(command.unit)
                raise
    except (EntryRefusedError, subprocess.TimeoutExpired) as no:
        log.warning("the container of lease %s could not be removed: %s", record.lease, no)


def _labels(key: Key) -> dict[str, str]:
    return {LEASE_LABEL: harmless(key[0]), GENERATION_LABEL: str(key[1])}


class UnitContainers:
    """In units, by the holder's own Podman."""

    def __init__(
        self, podman: Podman, account: Callable[[str], Account] = account_of, shell: Shell | None = None
    ) -> None:
        self.podman = podman
        self._account = account
        self._shell = shell or HostShell()
        self._count = 0

    def engine(self, user: str, why: str, words: Sequence[str]) -> HolderCommand:
        """Return a unit without devices, as the holder; it ends by itself after the longest time of a pull."""
        holder = self._holder(user)
        self._count += 1
        unit = f"{IMAGE_UNIT}{why}-{os.getpid()}-{self._count}"
        rules = [f"--property=DeviceAllow={rule}" for rule in _PULLS_OPEN]
        given = [f"--setenv={name}={value}" for name, value in self.engine_env(user).items()]
        own = [
            "systemd-run", "--quiet", "--collect", "--pipe", "--wait", f"--unit={unit}", f"--uid={holder.name}",
            f"--property=RuntimeMaxSec={LONGEST_PULL_S}", "--property=DevicePolicy=closed", *_LIMITS, *rules, *given,
            "--",
        ]  # fmt: skip
        return HolderCommand([*own, *words], {"PATH": ENGINE_PATH}, "/", None, holder, unit)

    def stop(self, unit: str) -> None:
        """Ask systemd: a unit goes on when the systemd-run that waits for it is ended."""
        try:
            self._shell.run(["systemctl", "stop", "--no-block", unit])
        except ProgramError as no:
            log.warning("%s could not be ended: %s", unit, no)

    def store_of(self, user: str) -> str:
        """Return the holder: images lie in their home."""
        return user

    def engine_env(self, user: str) -> dict[str, str]:
        """Return the same for pull and run: both must find the same store of images."""
        holder = self._holder(user)
        return {"HOME": holder.home, "USER": holder.name, "PATH": ENGINE_PATH}

    def box(self, record: LeaseRecord) -> ContainerBox:
        """Return the holder's home and the lease's device, whose spec brings variables and folders with it."""
        holder = self._holder(record.user)
        device = record.entrance.get(CDI, "")
        if not device:
            raise EntryRefusedError(
                "no_containers", "the lease was opened without a container device; the agent's log says why"
            )
        env = {"HOME": holder.home, "USER": holder.name, "LOGNAME": holder.name}
        return ContainerBox(
            name=container_name(record.key),
            labels=_labels(record.key),
            user=f"{holder.uid}:{holder.gid}",
            home=plain_path(holder.home),
            env=env,
            devices=(device,),
            memory_mib=record.host_memory_mib,
        )

    def _holder(self, user: str) -> Account:
        try:
            return self._account(user)
        except LookupError as no:
            raise EntryRefusedError("no_account", str(no.args[0] if no.args else no)) from no


class PlayedContainers:
    """For demos: no devices, and the lease's folder as the home."""

    def __init__(self, podman: Podman, entry: PlayedEntry, notice: Callable[[LeaseRecord], Path]) -> None:
        self.podman = podman
        self._entry = entry
        self._notice = notice

    def engine(self, user: str, why: str, words: Sequence[str]) -> HolderCommand:
        """Return the words as they are, in Podman's own environment."""
        return HolderCommand(list(words), self.engine_env(user), "/", None, None)

    def stop(self, unit: str) -> None:
        """Do nothing: no units are started."""

    def store_of(self, user: str) -> str:
        """Return that all share one."""
        return ""

    def engine_env(self, user: str) -> dict[str, str]:
        """Return the agent's own home, where its images are."""
        kept = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR") if name in os.environ}
        return {**kept, "HOME": os.path.expanduser("~"), "PATH": ENGINE_PATH}

    def box(self, record: LeaseRecord) -> ContainerBox:
        """Return the lease's folder, variables and notices."""
        inside = self._entry.command(record)
        holder = inside.account
        notices = self._notice(record).parent
        try:
            passable(notices)  # Podman refuses to mount what is not there
        except OSError as no:
            raise EntryRefusedError("no_folder", f"no folder for notices: {no.strerror}") from no
        uid, gid = (os.getuid(), os.getgid()) if holder is None else (holder.uid, holder.gid)
        shown = {str(notices): True, **self._entry.seen_folders(record)}
        return ContainerBox(
            name=container_name(record.key),
            labels=_labels(record.key),
            user=f"{uid}:{gid}",
            home=plain_path(inside.folder),
            env={name: value for name, value in inside.env.items() if name not in _OUTSIDE},
            mounts={plain_path(path): only_read for path, only_read in shown.items()},
            cpu_milli=record.cpu_milli,
            memory_mib=record.host_memory_mib,
        )


def plain_path(path: str) -> str:
    """Return a path that can stand in a mount; raises EntryRefusedError for any other."""
    if ":" in path or not path.startswith("/"):
        raise EntryRefusedError("bad_path", f"{path} cannot be shown in a container: it has a colon")
    return path
