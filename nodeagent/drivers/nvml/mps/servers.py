"""MPS for shares of a device: one control daemon for each (device, user), asked rather than remembered.

What MPS keeps and what it does not: docs/mps.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.drivers.nvml.health.repairs import ShareDefect
from nodeagent.drivers.nvml.mps.classic import ClassicProtocol
from nodeagent.drivers.nvml.mps.compute_mode import ComputeModes
from nodeagent.drivers.nvml.mps.daemon import (
    CLASSIC,
    GONE,
    NAMED,
    PROGRAM,
    SOCKET_ROOM,
    MpsControlProgram,
    MpsDaemon,
    MpsDaemons,
    MpsProtocol,
    MpsShare,
    UserIds,
    is_serving,
    let_pass,
)
from nodeagent.drivers.nvml.mps.named import NamedProtocol
from nodeagent.host.shell import ProgramError, Shell
from nodeagent.protocol.messages import HealthFact

__all__ = ["Mps", "MpsShare", "UserIds"]

LOOKS: Final = 50
PAUSE_S: Final = 0.2
FAULTS_EVERY_S: Final = 10.0
# A share is looked at anew no sooner than this; where putting it right was refused, later each time.
KEEP_EVERY_S: Final = 5.0
MOST_REST_S: Final = 300.0
MIG: Final = "MIG-"

Pids = Callable[[], Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Looked:
    """When the shares of a user are looked at next, and why they could not be put right the last time."""

    again_at: float
    rest_s: float = KEEP_EVERY_S
    refusal: NvmlLikeError | NotOfferedError | None = None


class Mps:
    """Starts, limits, empties and ends the MPS daemons of a node's shares.

    Refusals are NvmlLikeError and NotOfferedError with a sentence. Every verb may be repeated, also by another
    agent process that finds what this one left half done. Calls for one device must not overlap.
    """

    def __init__(
        self,
        library: Any,
        shell: Shell,
        run_dir: Path,
        *,
        account: Callable[[str], UserIds],
        own: Callable[[Path, int, int], None] = let_pass,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        socket_room: int = SOCKET_ROOM,
    ) -> None:
        self._nvml = library
        self._tool = MpsControlProgram(shell)
        self._daemons = MpsDaemons(run_dir, own=own, socket_room=socket_room)
        self._account = account
        self._pause = pause
        self._clock = clock
        self._modes = ComputeModes(library)
        self._speakers: dict[int, MpsProtocol] = {
            CLASSIC: ClassicProtocol(self._tool, self._wait),
            NAMED: NamedProtocol(self._tool, self._wait),
        }
        self._faults: tuple[float, list[HealthFact]] | None = None
        self._stopped: set[tuple[str, str]] = set()
        self._looked: dict[tuple[str, str], _Looked] = {}

    def why_not(self) -> str:
        """Return what to install or allow before this host can share by MPS, "" when it can."""
        try:
            self._tool.newest()
        except ProgramError as no:
            return f"{no}; MPS needs {PROGRAM}, which comes with NVIDIA's compute utilities for the driver"
        return ""

    def open(self, share: MpsShare, of_user: Sequence[MpsShare]) -> None:
        """Have a daemon for the share's device and user whose limits hold, read back from it.

        ``of_user`` are all live shares of that user on that device. Raises IN_USE while a fault keeps newcomers
        out, INVALID_ARGUMENT for a share without limits, NotOfferedError where a limit is not kept. What a
        refusal leaves behind is found by the next ``open`` and ended by ``close``.
        """
        shares = [share, *(other for other in of_user if other.partition != share.partition)]
        for each in shares:
            _check(each, share)
        account = self._known(share.user)
        self._looked.pop((share.device, share.user), None)
        self._modes.require_mps(share.device)
        # A device lets one server in when exclusive: make room before a second user's daemon starts.
        self._modes.settle(share.device, daemons=self._others(share.device, share.user) + 1)
        daemon = self._daemons.of(share.device, share.user)
        is_up = False if daemon is None else self._is_up(daemon)
        if is_up is None:
            raise _silent(share.device, share.user)
        if daemon is None or not is_up:
            daemon = self._begin(share, account, self._protocol(share.device))
        self._daemons.let_in(daemon, account)  # only now: see MpsDaemons.make
        self._require_no_fault(daemon)
        self._speaker(daemon).settle(daemon, shares)
        self._looked[share.device, share.user] = _Looked(self._clock() + KEEP_EVERY_S)

    def keep(
        self, share: MpsShare, of_user: Sequence[MpsShare], *, outside: Pids, servers: Pids
    ) -> list[ShareDefect] | None:
        """Look at what a share in use needs and put right what is not so; returns what was lacking.

        ``outside`` lists the programs that use the device past MPS, ``servers`` the MPS servers of the user that
        run there. Neither are they disturbed, nor a daemon that serves. None: it was looked at a moment ago.
        Raises NvmlLikeError and NotOfferedError where something cannot be put right; that is repeated at once,
        and tried anew later and later.
        """
        key, now = (share.device, share.user), self._clock()
        before = self._looked.get(key)
        if before is not None and now < before.again_at:
            if before.refusal is not None:
                raise before.refusal.with_traceback(None)
            return None
        shares = [share, *(other for other in of_user if other.partition != share.partition)]
        try:
            found = self._keep(share, shares, outside, servers)
        except (NvmlLikeError, NotOfferedError) as no:
            is_first = before is None or before.refusal is None
            rest_s = KEEP_EVERY_S if before is None or is_first else min(MOST_REST_S, 2 * before.rest_s)
            self._looked[key] = _Looked(now + rest_s, rest_s, no)
            raise
        self._looked[key] = _Looked(now + KEEP_EVERY_S)
        return found

    def access(self, share: MpsShare) -> Access:
        """Return how a program becomes a client with this share's limits. Raises NOT_FOUND before ``open``."""
        daemon = self._daemons.of(share.device, share.user)
        if daemon is None:
            raise NvmlLikeError(
                errors.NOT_FOUND, f"no MPS daemon was prepared for {share.user} on {share.device}"
            )
        return self._speaker(daemon).access(daemon, share)

    def clients(self, device: str, user: str) -> list[int]:
        """Return the pids that work through this daemon now; none where there is no daemon."""
        daemon = self._daemons.of(device, user)
        if daemon is None or self._is_up(daemon) is False:
            return []
        return sorted(self._speaker(daemon).clients(daemon))

    def end_clients(self, share: MpsShare, pids: Sequence[int]) -> None:
        """End the work that these processes have on the device, and that of all clients known to be the share's.

        To be called before they get any signal: a client killed with work in flight may take others along.
        """
        daemon = self._daemons.of(share.device, share.user)
        if daemon is None or self._is_up(daemon) is False:
            return
        speaker = self._speaker(daemon)
        for pid, where in sorted(speaker.clients(daemon).items()):
            if pid in pids or speaker.ends_with(share, where):
                speaker.terminate(daemon, pid, where)

    def release(self, share: MpsShare, rest: Sequence[MpsShare]) -> None:
        """Take a share's limits away once its processes are gone; without a ``rest`` the daemon ends too.

        ``rest`` are the user's other live shares on the device, whose limits stay.
        """
        others = [other for other in rest if other.partition != share.partition]
        if not others:
            self.close(share.device, share.user)
            return
        daemon = self._daemons.of(share.device, share.user)
        if daemon is not None and self._is_up(daemon):
            self._speaker(daemon).release(daemon, share, others)

    def close(self, device: str, user: str) -> None:
        """End a daemon; gone already is success. Raises IN_USE while clients remain, TIMEOUT when it stays."""
        daemon = self._daemons.of(device, user)
        if daemon is not None:
            self._quit(daemon)
        self._modes.give_back(device, daemons=self._others(device, user))
        if daemon is not None:
            self._daemons.remove(daemon)

    def daemons(self) -> list[tuple[str, str]]:
        """Return the (device, user) whose daemon answers now."""
        return [(daemon.device, daemon.user) for daemon in self._daemons.all() if self._is_up(daemon)]

    def state(self, device: str, user: str) -> str:
        """Return "active", "fault" (newcomers are refused), "stopped", or "" when it cannot be told."""
        daemon = self._daemons.of(device, user)
        return "stopped" if daemon is None else self._state(daemon)

    def faults(self) -> list[HealthFact]:
        """Return what is wrong with daemons that should serve; looked at anew every ten seconds at most."""
        now = self._clock()
        if self._faults is None or now - self._faults[0] >= FAULTS_EVERY_S:
            states = [(daemon, self._state(daemon)) for daemon in self._daemons.all()]
            found = [fact for daemon, state in states if (fact := self._fault(daemon, state)) is not None]
            self._stopped = {(daemon.device, daemon.user) for daemon, state in states if state == "stopped"}
            self._faults = now, found
        return list(self._faults[1])

    def _keep(
        self, share: MpsShare, shares: Sequence[MpsShare], outside: Pids, servers: Pids
    ) -> list[ShareDefect]:
        daemon = self._daemons.of(share.device, share.user)
        state = "stopped" if daemon is None else self._state(daemon)
        if not state and daemon is not None:  # whether it serves cannot be told: then it is left alone
            if self._is_up(daemon) is None:
                raise _silent(share.device, share.user)
            return []
        lacks = self._keep_mode(share, outside)
        if state == "stopped":
            return [*lacks, self._revive(share, shares, daemon, servers)]
        if daemon is not None and state == "active" and not self._speaker(daemon).is_bound(daemon, shares):
            had_server = bool(self._speaker(daemon).statuses(daemon))
            self._speaker(daemon).settle(daemon, shares)
            lacks.append(
                ShareDefect("limit_gone", f"{share.user} by MPS, set again")
                if had_server
                else _again(share.user)
            )
        return lacks

    def _keep_mode(self, share: MpsShare, outside: Pids) -> list[ShareDefect]:
        """Put the compute mode back, unless a program would be in the way of that or that in its."""
        users = {daemon.user for daemon in self._daemons.all() if daemon.device == share.device} | {
            share.user
        }
        if self._modes.is_as_wanted(share.device, daemons=len(users)):
            return []
        # Only the exclusive mode keeps anybody out.
        if pids := outside() if len(users) == 1 else ():
            detail = f"the compute mode is put back when these have ended: {_list(pids)}"
            return [ShareDefect("compute_mode", detail, is_mended=False)]
        self._modes.settle(share.device, daemons=len(users))
        if not self._modes.is_as_wanted(share.device, daemons=len(users)):
            return []  # the device shows a mode that nobody can change: it is what it was from the beginning
        return [ShareDefect("compute_mode", "it was put back")]

    def _revive(
        self, share: MpsShare, shares: Sequence[MpsShare], daemon: MpsDaemon | None, servers: Pids
    ) -> ShareDefect:
        """Start a daemon again that ended under its shares, or the server that it lost, at the same place."""
        if daemon is None or not self._is_up(daemon):
            if pids := servers():
                detail = (
                    f"{share.user}: a new one is started when the server of before has ended: {_list(pids)}"
                )
                return ShareDefect("mps_gone", detail, is_mended=False)
            account = self._known(share.user)
            # The lease's variables say where it was: a newer driver speaks the older protocol too.
            protocol = self._protocol(share.device) if daemon is None else daemon.protocol
            daemon = self._begin(share, account, protocol)
            self._daemons.let_in(daemon, account)
        self._speaker(daemon).settle(daemon, shares)
        self._faults = None  # what was seen of it before is over
        return _again(share.user)

    def _begin(self, share: MpsShare, account: UserIds, protocol: int) -> MpsDaemon:
        daemon = self._daemons.make(share.device, share.user, account, protocol)
        self._speaker(daemon).start(daemon)
        if not self._wait(lambda: self._is_up(daemon) is True):
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"the MPS daemon of {share.user} on {share.device} does not answer after its start: "
                f"{daemon.log}/control.log says more",
            )
        return daemon

    def _quit(self, daemon: MpsDaemon) -> None:
        is_up = self._is_up(daemon)
        if is_up is None:
            raise _silent(daemon.device, daemon.user)
        if not is_up:
            return
        left = sorted(self._speaker(daemon).clients(daemon))
        if left:
            raise NvmlLikeError(
                errors.IN_USE, f"processes of {daemon.user} still use MPS on {daemon.device}: {left}"
            )
        self._speaker(daemon).quit(daemon)
        if not self._wait(lambda: self._is_up(daemon) is False):
            raise NvmlLikeError(
                errors.TIMEOUT, f"the MPS daemon of {daemon.user} on {daemon.device} does not end"
            )

    def _require_no_fault(self, daemon: MpsDaemon) -> None:
        if self._state(daemon) == "fault":
            left = sorted(self._speaker(daemon).clients(daemon))
            raise NvmlLikeError(
                errors.IN_USE,
                f"a program of {daemon.user} faulted on {daemon.device}; MPS takes no new ones there until these have "
                f"ended: {left}",
            )

    def _protocol(self, device: str) -> int:
        try:
            newest = self._tool.newest()
        except ProgramError as no:
            raise NotOfferedError(f"{no}: MPS cannot be used on this host") from no
        # Named servers are documented for whole GPUs only.
        return CLASSIC if device.startswith(MIG) else newest

    def _known(self, user: str) -> UserIds:
        try:
            return self._account(user)
        except LookupError as no:
            said = no.args[0] if no.args else f"this host has no account {user!r}"
            raise NotOfferedError(str(said)) from no

    def _others(self, device: str, user: str) -> int:
        # A daemon that does not answer may still hold the device.
        return sum(
            1
            for daemon in self._daemons.all()
            if daemon.device == device and daemon.user != user and self._is_up(daemon) is not False
        )

    def _state(self, daemon: MpsDaemon) -> str:
        is_up = self._is_up(daemon)
        if is_up is None:
            return ""
        if not is_up:
            return "stopped"
        try:
            said = self._speaker(daemon).statuses(daemon)
        except NvmlLikeError:
            return ""
        if any("FAULT" in status for status in said):
            return "fault"
        if GONE in said:
            return "stopped"
        return "active" if all(is_serving(status) for status in said) else ""

    def _fault(self, daemon: MpsDaemon, state: str) -> HealthFact | None:
        if state == "fault":
            code = "mps_fault"
            detail = f"A program of {daemon.user} faulted under MPS; new ones are refused until those there have ended."
        elif state == "stopped" and (daemon.device, daemon.user) in self._stopped:
            # Seen twice: one look may fall between the steps of an opening or a closing.
            code = "mps_gone"
            detail = (
                f"The MPS daemon of {daemon.user} has ended; programs started now run without its limits."
            )
        else:
            return None
        return HealthFact(self._whole_device(daemon.device), code, "warning", detail, "restart_workload")

    def _whole_device(self, device: str) -> str:
        """Return the UUID of the device that a MIG instance is on, "" when NVML does not tell."""
        if not device.startswith(MIG):
            return device
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(device)
            parent = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            said = self._nvml.nvmlDeviceGetUUID(parent)
        except self._nvml.NVMLError:
            return ""
        return said.decode() if isinstance(said, bytes) else str(said)

    def _is_up(self, daemon: MpsDaemon) -> bool | None:
        return self._speaker(daemon).is_up(daemon)

    def _speaker(self, daemon: MpsDaemon) -> MpsProtocol:
        return self._speakers.get(daemon.protocol, self._speakers[CLASSIC])

    def _wait(self, is_so: Callable[[], bool]) -> bool:
        for look in range(LOOKS):
            if look:
                self._pause(PAUSE_S)
            if is_so():
                return True
        return False


def _check(share: MpsShare, first: MpsShare) -> None:
    if not 1 <= share.share_milli <= 1000 or share.memory_mib <= 0:
        raise NvmlLikeError(
            errors.INVALID_ARGUMENT,
            f"an MPS share needs a part of the device and a memory limit, not {share.share_milli} thousandths and "
            f"{share.memory_mib} MiB: without one it could take what its neighbours were given",
        )
    if (share.device, share.user) != (first.device, first.user):
        raise NvmlLikeError(
            errors.INVALID_ARGUMENT, f"{share.partition} is not a share of {first.user} on {first.device}"
        )


def _again(user: str) -> ShareDefect:
    return ShareDefect("mps_restarted", f"{user}, started again")


def _list(pids: Sequence[int]) -> str:
    """Return pids for people, the first few."""
    return ", ".join(map(str, pids[:5]))


def _silent(device: str, user: str) -> NvmlLikeError:
    return NvmlLikeError(
        errors.TIMEOUT,
        f"it cannot be told whether an MPS daemon of {user} runs on {device}: {PROGRAM} does not answer",
    )
