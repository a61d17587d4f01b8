"""The simulated host around simulated cards: its processes, seen alike by the library, the units and MPS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.shell import TIMEOUT_S, Done, ProgramError

FIRST_PID = 40_000


@dataclass(slots=True)
class SimulatedProcess:
    """One process. ``gpu`` is the uuid of the device it works on ("" for none), ``gi`` the GPU instance on it.

    ``is_stubborn`` ignores SIGTERM; SIGKILL always ends it. ``ci`` is the compute instance inside the GPU instance,
    ``load_pattern`` how busy it keeps what it runs on (see load.py), ``is_graphics`` whether it draws.
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


@dataclass(slots=True)
class World:
    """All processes of one simulated host. Nothing here survives its reboot."""

    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    next_pid: int = FIRST_PID
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def spawn(self, cgroup: str, **facts: object) -> SimulatedProcess:
        """Start a process in a cgroup; ``facts`` are fields of SimulatedProcess."""
        with self._lock:
            pid, self.next_pid = self.next_pid, self.next_pid + 1
        process = SimulatedProcess(pid, cgroup, **facts)  # type: ignore[arg-type]
        self.processes[process.pid] = process
        return process

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
