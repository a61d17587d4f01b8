"""MPS by protocol 3 (driver 615): one named server per daemon, a namespace with its own limits for each lease."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.mps.classic import Wait
from nodeagent.drivers.nvml.mps.daemon import (
    GONE,
    MpsControlProgram,
    MpsDaemon,
    MpsShare,
    is_serving,
    keeps_memory,
    keeps_percent,
    write,
)

CSV: Final = "--format=csv,noheader"
OURS: Final = "l_"
# The one server of a daemon; names have lowercase letters, digits and underscores, and lie in the paths of sockets
# and logs (mps_seat.LOGS).
SERVER: Final = "s"

# The default namespace belongs to no lease: what it allows is too little to start a program in.
LEAST_PERCENT: Final = 1
LEAST_MIB: Final = 1


@dataclass(frozen=True, slots=True)
class MpsNamespace:
    """A namespace as the program lists it."""

    name: str
    memory: str
    percent: str
    pipe: str


class NamedProtocol:
    """Speaks protocol 3. Limits of a server hold for its default namespace only; new namespaces have none."""

    def __init__(self, tool: MpsControlProgram, wait: Wait) -> None:
        self._tool = tool
        self._wait = wait

    def is_up(self, daemon: MpsDaemon) -> bool | None:
        """Ask for the servers; that there are none is an answer too."""
        done = self._tool.attempt(daemon, "server", "list", CSV)
        return None if done is None else done.is_ok

    def start(self, daemon: MpsDaemon) -> None:
        """Run the daemon with a configuration that has the server, its owner and its one device."""
        write(daemon.config, config(daemon))
        self._tool.attempt(daemon, "-d", "-p", "3", "-a", str(daemon.config))

    def settle(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> None:
        """Have the server on its device and a namespace with limits for each share, all read back."""
        self._serve(daemon)
        wanted = {space_of(share.partition): share for share in shares}
        there = self._spaces(daemon)
        for name, share in wanted.items():
            if name not in there:
                self._do(daemon, "namespace", "create", name, f"--server={SERVER}")
            self._limit(daemon, name, share)
        self._prune(daemon, [name for name in there if name.startswith(OURS) and name not in wanted])

    def is_bound(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> bool:
        """Compare the namespace of each share with what was set and read back there."""
        there = self._spaces(daemon)
        return all(
            (space := there.get(space_of(share.partition))) is not None
            and _keeps(space, share.memory_mib, share.percent)
            for share in shares
        )

    def statuses(self, daemon: MpsDaemon) -> list[str]:
        """Return the status of our server; GONE when the daemon has lost it, and clients with it."""
        rows = self._rows(daemon, "server", "list", least=6)
        return [row[3].upper() for row in rows if row[0] == SERVER] or [GONE]

    def clients(self, daemon: MpsDaemon) -> dict[int, str]:
        """Return the clients, each with its namespace."""
        # The last column is the client's own command line: whatever it holds, it must not break the list.
        rows = self._rows(daemon, "client", "list", "--all", least=0)
        return {int(row[0]): row[3] for row in rows if len(row) > 3 and row[0].isdigit()}

    def ends_with(self, share: MpsShare, where: str) -> bool:
        """Whoever works in a lease's namespace uses that lease."""
        return where == space_of(share.partition)

    def terminate(self, daemon: MpsDaemon, pid: int, where: str) -> None:
        """End the work of one client."""
        self._do(daemon, "client", "terminate", str(pid))

    def release(self, daemon: MpsDaemon, share: MpsShare, rest: Sequence[MpsShare]) -> None:
        """Delete the lease's namespace, unless it went with its server. Raises IN_USE while clients are in it."""
        if self.statuses(daemon) == [GONE]:
            return
        name = space_of(share.partition)
        inside = sorted(pid for pid, where in self.clients(daemon).items() if where == name)
        if inside:
            raise NvmlLikeError(errors.IN_USE, f"processes still use this MPS share: {inside}")
        self._prune(daemon, [name] if name in self._spaces(daemon) else [])

    def quit(self, daemon: MpsDaemon) -> None:
        """Ask the daemon to end with its server."""
        self._do(daemon, "-q")

    def access(self, daemon: MpsDaemon, share: MpsShare) -> Access:
        """Return the environment of a client: its folder alone says which namespace it is in.

        No limits by variable here: the namespace has them, and an entry for a device that a program does not
        see would make it drop the namespace's memory limit as well.
        """
        folder = str(daemon.pipe / SERVER / space_of(share.partition))
        env = {
            "CUDA_VISIBLE_DEVICES": daemon.device,
            "CUDA_MPS_PIPE_DIRECTORY": folder,
            "CUDA_MPS_LOG_DIRECTORY": str(daemon.log),
        }
        return Access(env=env, folders=(folder,))

    def _serve(self, daemon: MpsDaemon) -> None:
        if self.statuses(daemon) == [GONE]:
            uid, devices = f"--uid={daemon.uid}", f"--allowed-devices={daemon.device}"
            self._do(daemon, "server", "create", SERVER, uid, devices)
        if not self._wait(lambda: all(is_serving(status) for status in self.statuses(daemon))):
            # A server for a device that is not there is accepted, ends at once and is listed no more.
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"no MPS server starts for {daemon.user} on {daemon.device}: is the device there, and free of other "
                f"programs? {daemon.log}/{SERVER}/server.log says more",
            )
        rows = self._rows(daemon, "server", "list", least=6)
        mine = next((row for row in rows if row[0] == SERVER), None)
        if mine is None or mine[5] != daemon.device or mine[1] != str(daemon.uid):
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"the MPS server of {daemon.user} is not the one asked for on {daemon.device}: {mine}",
            )
        default = [f"--pinned-memory-limit={LEAST_MIB}M", f"--active-thread-percentage={LEAST_PERCENT}"]
        self._do(daemon, "server", "set", SERVER, *default)

    def _limit(self, daemon: MpsDaemon, name: str, share: MpsShare) -> None:
        limits = [f"--pinned-memory-limit={share.limit}", f"--active-thread-percentage={share.percent}"]
        self._do(daemon, "namespace", "set", name, f"--server={SERVER}", *limits)
        space = self._spaces(daemon).get(name)
        expected = str(daemon.pipe / SERVER / name)
        if space is None or space.pipe != expected:
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"MPS did not make {expected} for {daemon.user} on {daemon.device}: it lists {space}",
            )
        if not _keeps(space, share.memory_mib, share.percent):
            raise NotOfferedError(
                f"MPS does not keep {share.percent} % and {share.limit} for {daemon.user} on {daemon.device}: asked "
                f"back it says {space.percent} and {space.memory}; share this device by memory limits or time "
                "slices instead"
            )

    def _prune(self, daemon: MpsDaemon, names: Sequence[str]) -> None:
        busy = set(self.clients(daemon).values()) if names else set()
        for name in names:
            if name not in busy:
                self._do(daemon, "namespace", "delete", name, f"--server={SERVER}")

    def _spaces(self, daemon: MpsDaemon) -> dict[str, MpsNamespace]:
        rows = self._rows(daemon, "namespace", "list", f"--server={SERVER}", least=7)
        return {row[0]: MpsNamespace(row[0], row[3], row[4], row[6]) for row in rows}

    def _rows(self, daemon: MpsDaemon, *words: str, least: int) -> list[list[str]]:
        said = self._do(daemon, *words, CSV)
        lines = [line.split(",") for line in said.splitlines() if line.strip()]
        rows = [[cell.strip() for cell in row] for row in lines]
        if any(len(row) < least for row in rows):
            raise NvmlLikeError(
                errors.UNKNOWN, f"the answer to {' '.join(words)!r} is not as documented: {said!r}"
            )
        return rows

    def _do(self, daemon: MpsDaemon, *words: str) -> str:
        return self._tool.do(daemon, *words)


def space_of(partition: str) -> str:
    """Return the name of a share's namespace."""
    return OURS + hashlib.sha256(partition.encode()).hexdigest()[:8]


def _keeps(space: MpsNamespace, memory_mib: int, percent: int) -> bool:
    return keeps_memory(space.memory, memory_mib) and keeps_percent(space.percent, percent)


def config(daemon: MpsDaemon) -> str:
    """Return the configuration a daemon starts with, in the keys of NVIDIA's page on the file."""
    return (
        'schema_version = "1.0"\n\n'
        f"[servers.{SERVER}]\n"
        f'allowed_devices = "{daemon.device}"\n'
        f'pinned_memory_limit = "{LEAST_MIB}M"\n'
        f'active_thread_percentage = "{LEAST_PERCENT}"\n'
        f"uid = {daemon.uid}\n"
    )
