"""MPS by protocol 2: commands through standard input, one server per user, limits of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.mps.daemon import (
    MpsControlProgram,
    MpsDaemon,
    MpsShare,
    keeps_memory,
    keeps_percent,
    numbers,
)

Wait = Callable[[Callable[[], bool]], bool]


class ClassicProtocol:
    """Speaks protocol 2. Defaults hold for servers to come, settings of a server for clients to come."""

    def __init__(self, tool: MpsControlProgram, wait: Wait) -> None:
        self._tool = tool
        self._wait = wait

    def is_up(self, daemon: MpsDaemon) -> bool | None:
        """Ask for the default percentage, which every daemon knows."""
        done = self._tool.attempt(daemon, stdin="get_default_active_thread_percentage\n")
        if done is None:
            return None
        return done.is_ok and any(_is_number(line) for line in done.out.split())

    def start(self, daemon: MpsDaemon) -> None:
        """Run the daemon in the background."""
        # A daemon that keeps our pipes open looks like one that never ends: asking it decides.
        self._tool.attempt(daemon, "-d")

    def settle(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> None:
        """Set defaults, have a server, set the server too, and read all back from the server.

        The defaults alone prove nothing: a limit for a device that the daemon does not know is stored,
        repeated when asked for, and ignored when a server starts.
        """
        self._limit_newcomers(daemon, shares)
        self._limit_servers(daemon, shares, self._servers_started(daemon))

    def is_bound(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> bool:
        """Compare the defaults and the server, which must be there, with the largest share."""
        percent, memory = _largest(shares)
        servers = self._servers(daemon)
        asked = [("default_active_thread_percentage", f"default_device_pinned_mem_limit {daemon.device}")]
        for server in servers:
            asked.append(
                (f"active_thread_percentage {server}", f"device_pinned_mem_limit {server} {daemon.device}")
            )
        return bool(servers) and all(
            keeps_percent(self._say(daemon, f"get_{part}"), percent)
            and keeps_memory(self._say(daemon, f"get_{limit}"), memory)
            for part, limit in asked
        )

    def statuses(self, daemon: MpsDaemon) -> list[str]:
        """Ask each server."""
        return [self._say(daemon, f"get_server_status {server}").upper() for server in self._servers(daemon)]

    def clients(self, daemon: MpsDaemon) -> dict[int, str]:
        """Return the clients of all servers, each with its server."""
        found = {}
        for server in self._servers(daemon):
            for pid in numbers(self._say(daemon, f"get_client_list {server}")):
                found[pid] = str(server)
        return found

    def ends_with(self, share: MpsShare, where: str) -> bool:
        """A server is shared by all of the user's leases: only pids tell them apart."""
        return False

    def terminate(self, daemon: MpsDaemon, pid: int, where: str) -> None:
        """End the work of one client."""
        self._say(daemon, f"terminate_client {where} {pid}")

    def release(self, daemon: MpsDaemon, share: MpsShare, rest: Sequence[MpsShare]) -> None:
        """Lower the limits to the largest share that is left; a server that is not there is not started for it."""
        self._limit_newcomers(daemon, rest)
        if self._servers(daemon):
            self._limit_servers(daemon, rest, self._servers_started(daemon))

    def quit(self, daemon: MpsDaemon) -> None:
        """Ask the daemon to end; it waits for clients, and the caller has made sure that there are none."""
        self._tool.do(daemon, stdin="quit\n")

    def access(self, daemon: MpsDaemon, share: MpsShare) -> Access:
        """Return the environment of a client: it can narrow the limits of the server, not widen them."""
        env = {
            "CUDA_VISIBLE_DEVICES": daemon.device,
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(daemon.log),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share.percent),
            # By UUID: an entry that the client cannot see makes it drop all memory limits.
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{daemon.device}={share.limit}",
        }
        return Access(env=env, folders=(str(daemon.pipe), str(daemon.log)))

    def _limit_newcomers(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> None:
        """Set what servers to come begin with."""
        percent, memory = _largest(shares)
        self._bring(daemon, "default_active_thread_percentage", str(percent), keeps_percent, percent)
        self._bring(
            daemon, f"default_device_pinned_mem_limit {daemon.device}", f"{memory}M", keeps_memory, memory
        )

    def _limit_servers(self, daemon: MpsDaemon, shares: Sequence[MpsShare], servers: Sequence[int]) -> None:
        """Set what holds for clients to come of servers that are there."""
        percent, memory = _largest(shares)
        for server in servers:
            limit = f"device_pinned_mem_limit {server} {daemon.device}"
            self._bring(daemon, f"active_thread_percentage {server}", str(percent), keeps_percent, percent)
            self._bring(daemon, limit, f"{memory}M", keeps_memory, memory)

    def _servers(self, daemon: MpsDaemon) -> list[int]:
        return numbers(self._say(daemon, "get_server_list"))

    def _servers_started(self, daemon: MpsDaemon) -> list[int]:
        if not self._servers(daemon):
            self._say(daemon, f"start_server -uid {daemon.uid}")
        if not self._wait(lambda: bool(self._servers(daemon))):
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"no MPS server starts for {daemon.user} on {daemon.device}: is the device there, and free of other "
                f"programs? {daemon.log}/server.log says more",
            )
        # A server that is still starting takes no settings yet; one in FAULT answers, and is told apart later.
        if not self._wait(lambda: "INITIALIZING" not in self.statuses(daemon)):
            raise NvmlLikeError(
                errors.TIMEOUT, f"the MPS server of {daemon.user} on {daemon.device} is still starting"
            )
        return self._servers(daemon)

    def _bring(
        self, daemon: MpsDaemon, what: str, value: str, kept: Callable[[str, int], bool], wanted: int
    ) -> None:
        # Set it even when it reads right already: limits are shown rounded, a wider one can look the same.
        self._say(daemon, f"set_{what} {value}")
        reply = self._say(daemon, f"get_{what}")
        if not kept(reply, wanted):
            raise NotOfferedError(
                f"MPS does not keep {what.split()[0]} {value} for {daemon.user} on {daemon.device}: asked back it says "
                f"{reply!r}; share this device by memory limits or time slices instead"
            )

    def _say(self, daemon: MpsDaemon, command: str) -> str:
        return self._tool.do(daemon, stdin=f"{command}\n")


def _largest(shares: Sequence[MpsShare]) -> tuple[int, int]:
    """Return the largest percentage and the most MiB of a user's shares."""
    return max(share.percent for share in shares), max(share.memory_mib for share in shares)


def _is_number(word: str) -> bool:
    try:
        return float(word) >= 0
    except ValueError:
        return False
