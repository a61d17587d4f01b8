"""The simulated host around simulated devices: its processes, seen alike by the library, the units and MPS."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.host.shell import TIMEOUT_S, Done, ProgramError

FIRST_PID = 40_000
NOBODY = 65_534


@dataclass(slots=True)
class SimulatedProcess:
    """One process. ``gpu`` is the uuid of the device it works on ("" for none), ``gi`` the GPU instance on it.

    ``is_stubborn`` ignores SIGTERM; SIGKILL always ends it. ``ci`` is the compute instance inside the GPU instance,
    ``load_pattern`` how busy it keeps what it runs on (see load.py), ``is_graphics`` whether it draws. ``started`` in
    clock ticks since boot, ``catches`` the signals that it has handlers for, ``heard`` those that reached them.
    """

    pid: int
    cgroup: str
    user: str = ""
    name: str = "python"
    gpu: str = ""
    gi: int | None = None
    memory_mib: int = 0
    is_mps: bool = False
    is_stubborn: bool = False
    ci: int = 0
    load_pattern: str = "steady"
    is_graphics: bool = False
    started: int = 0
    catches: frozenset[int] = frozenset()
    heard: list[int] = field(default_factory=list)


@dataclass(slots=True)
class World:
    """All processes of one simulated host. Nothing here survives its reboot.

    ``uids`` are the accounts; a process without user runs as root, one of an unknown user as somebody else.
    """

    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    next_pid: int = FIRST_PID
    uids: dict[str, int] = field(default_factory=dict)
    ticks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def spawn(self, cgroup: str, **facts: object) -> SimulatedProcess:
        """Start a process in a cgroup; ``facts`` are fields of SimulatedProcess."""
        with self._lock:
            pid, self.next_pid = self.next_pid, self.next_pid + 1
        return self.respawn(pid, cgroup, **facts)

    def respawn(self, pid: int, cgroup: str, **facts: object) -> SimulatedProcess:
        """Start a process under a pid that another one had, as the kernel does once its numbers have gone round."""
        with self._lock:
            self.ticks += 1
            # No two start at the same tick: a later process of the same pid differs from the earlier one.
            process = SimulatedProcess(pid, cgroup, **{"started": self.ticks, **facts})  # type: ignore[arg-type]
        self.processes[pid] = process
        return process

    def uid_of(self, process: SimulatedProcess) -> int:
        """Return the uid that a process runs under."""
        return self.uids.get(process.user, NOBODY) if process.user not in ("", "root") else 0

    def inside(self, cgroup: str) -> list[SimulatedProcess]:
        """Return the processes in a cgroup and below it."""
        found = list(self.processes.values())
        return [p for p in found if p.cgroup == cgroup or p.cgroup.startswith(f"{cgroup}/")]

    def on(self, gpu: str, gi: int | None = None) -> list[SimulatedProcess]:
        """Return the processes on a device, on one GPU instance of it when given."""
        return [p for p in list(self.processes.values()) if p.gpu == gpu and (gi is None or p.gi == gi)]

    def signal(self, pid: int, *, kill: bool) -> None:
        """End a process, unless it ignores being asked; gone already is success."""
        process = self.processes.get(pid)
        if process is not None and (kill or not process.is_stubborn):
            del self.processes[pid]

    def send(self, pid: int, number: int) -> None:
        """Send a signal as kill(2) does: a handler hears it, otherwise it ends the process.

        Raises ProcessLookupError where there is none.
        """
        process = self.processes.get(pid)
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        if number in process.catches and number != signal.SIGKILL:
            process.heard.append(number)
        else:
            self.signal(pid, kill=number != signal.SIGTERM)

    def reboot(self) -> None:
        """End everything."""
        self.processes.clear()


Program = Callable[[Sequence[str], str, Mapping[str, str]], Done]


@dataclass(slots=True)
class SimulatedShell:
    """Programs of the simulated host by name: each gets its words, standard input and environment."""

    programs: dict[str, Program] = field(default_factory=dict)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Done:
        """Run a simulated program; raises ProgramError where this host does not have it."""
        program = self.programs.get(argv[0].rpartition("/")[2])
        if program is None:
            raise ProgramError(f"{argv[0]} is not installed on this host")
        return program(argv, stdin, env or {})
