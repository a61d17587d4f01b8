"""The simulated ``nvidia-cuda-mps-control``: daemons, servers and clients as processes of the simulated host.

Both protocols as NVIDIA documents them (docs/mps.md), traps included: defaults reach only servers to come,
settings only clients to come, limits for unknown devices are kept in words and ignored in deeds, a server whose
device is not there ends at once, and a program with a wrong pipe folder runs outside without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.host.shell import Done
from nodeagent.simulation.machine.world import SimulatedProcess, World
from nodeagent.simulation.programs.mps_named import NamedCommands
from nodeagent.simulation.programs.mps_state import Client, Daemon, Limits, Server, ignore

PROGRAM: Final = "nvidia-cuda-mps-control"
NOBODY: Final = "Cannot find MPS control daemon process"
CGROUP: Final = "/system.slice/berth-agent.service"
MIB: Final = {"M": 1, "G": 1024}
OLD_HELP: Final = "usage: nvidia-cuda-mps-control [-d | -f | -v | -S]"
NEW_HELP: Final = """usage: nvidia-cuda-mps-control [options] <module> <verb> [arguments]
  -d, --daemon  -f, --foreground  -m, --multiuser  -a, --apply <file>  -p, --protocol <2|3>  -q, --quit
modules: server namespace client device sm-partition feature
"""

Where = Callable[[str], "tuple[str, int | None] | None"]


@dataclass(slots=True)
class SimulatedMps:
    """One program ``nvidia-cuda-mps-control`` for a SimulatedShell, and the life that goes on behind it.

    ``where`` tells the device and the GPU instance behind a UUID, None for one that is not there; ``newest`` is the
    protocol of the installed driver; ``is_exclusive`` says whether a device lets one process in; ``on_change`` is
    called with ``"<change>.before"`` and ``".after"`` around every change; ``most_clients`` are those of a server.
    ``rounds_memory`` shows limits as drivers do, in whole GiB from one on.
    """

    world: World
    where: Where
    newest: int = 3
    names: Mapping[int, str] = field(default_factory=dict)
    is_exclusive: Callable[[str], bool] = lambda device: False
    on_change: Callable[[str], None] = lambda name: None
    most_clients: int = 48
    rounds_memory: bool = True
    socket_room: int = 107
    starting_looks: int = 0
    daemons: dict[str, Daemon] = field(default_factory=dict)
    terminated: list[int] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        """Run the program once."""
        words = list(argv[1:])
        if "-h" in words:
            return self._help(words)
        pipe = env.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - its documented default
        self._pass()
        if "-d" in words:
            return self._start(pipe, words, env)
        daemon = self.daemons.get(pipe)
        if daemon is None or len(f"{pipe}/control") > self.socket_room:
            return Done(1, err=NOBODY)
        if daemon.protocol == 3:
            return NamedCommands(self, daemon).run(words)
        said = [self._classic(daemon, line.split()) for line in stdin.splitlines() if line.strip()]
        return next((done for done in said if not done.is_ok), Done(0, "".join(done.out for done in said)))

    # What goes on behind the program

    def connect(
        self, process: SimulatedProcess, env: Mapping[str, str], device: str, *, is_busy: bool = False
    ) -> str:
        """Let a process of the world start CUDA on a device: "mps", "outside" of MPS, or "refused".

        ``is_busy``: it has work in flight, so killing it before its termination faults the server.
        """
        self._pass()
        place = self.where(device)
        if place is None:
            return "refused"
        daemon, space = self._door(env.get("CUDA_MPS_PIPE_DIRECTORY", ""))
        if daemon is None:
            if self.is_exclusive(place[0]) and self.world.on(place[0]):
                return "refused"
            process.gpu, process.gi = place
            return "outside"
        uid = next((number for number, name in self.names.items() if name == process.user), daemon.uid)
        server = self.server_for(daemon, uid, space)
        if server is None or server.status != "ACTIVE" or len(server.clients) >= self.most_clients:
            return "refused"
        client = Client(process.pid, space, self._limits_of(daemon, server, space, env), is_busy)
        server.clients[process.pid] = client
        process.gpu, process.gi, process.is_mps = (*server.place, True)
        return "mps"

    def limits(self, pid: int) -> Limits:
        """Return the limits that hold for a client; KeyError for a process that is none."""
        for server in self.servers():
            if pid in server.clients:
                return server.clients[pid].limits
        raise KeyError(pid)

    def fault(self, pid: int) -> None:
        """Let a client fault: its server tells all clients and takes no new ones until these are gone."""
        for server in self.servers():
            if pid in server.clients:
                server.status = "FAULT"

    def servers(self) -> list[Server]:
        """Return all servers of all daemons."""
        self._pass()
        return [server for daemon in self.daemons.values() for server in daemon.servers.values()]

    # Used by both protocols

    def change(self, name: str, act: Callable[[], None]) -> None:
        """Make one change, whole, between its two points."""
        self.on_change(f"mps.{name}.before")
        act()
        self.on_change(f"mps.{name}.after")

    def launch(self, daemon: Daemon, name: str, uid: int, device: str, limits: Limits) -> None:
        """Start a server process on a device; on one that is not there or taken it ends at once."""
        place = self.where(device)
        if place is None or (self.is_exclusive(place[0]) and self.world.on(place[0])):
            return
        user = self.names.get(uid, str(uid))
        process = self.world.spawn(
            CGROUP, user=user, name="nvidia-cuda-mps-server", gpu=place[0], gi=place[1], memory_mib=30
        )
        status = "INITIALIZING" if self.starting_looks else "ACTIVE"
        server = Server(process.pid, name or str(process.pid), uid, device, place, status, limits)
        server.looks = self.starting_looks
        daemon.servers[server.name] = server

    def terminate(self, pid: int) -> None:
        """End the work of a client; the process itself goes on without a device."""
        self.terminated.append(pid)
        for server in self.servers():
            if pid in server.clients:
                server.clients[pid].is_busy = False

    def end(self, daemon: Daemon) -> None:
        """End a daemon with its servers."""
        for server in list(daemon.servers.values()):
            self.world.signal(server.pid, kill=True)
        self.world.signal(daemon.pid, kill=True)
        self.daemons.pop(daemon.pipe, None)

    def shown(self, mib: int | None) -> str:
        """Return a limit as the program prints it."""
        if mib is None:
            return ""
        return f"{mib // 1024}G" if self.rounds_memory and mib >= 1024 else f"{mib}M"

    def server_for(self, daemon: Daemon, uid: int, space: str) -> Server | None:
        """Return the server that takes a client of this user: a classic daemon starts it, one user at a time."""
        if daemon.protocol == 3:
            return daemon.servers.get(space.partition("/")[0])
        active = next(iter(daemon.servers.values()), None)
        if active is not None and active.uid != uid:
            if active.clients:
                return None
            self.world.signal(active.pid, kill=True)
            daemon.servers.clear()
            active = None
        if active is None:
            self.launch(daemon, "", uid, daemon.device, daemon.defaults_on(daemon.device))
        return next(iter(daemon.servers.values()), None)

    def _help(self, words: Sequence[str]) -> Done:
        if self.newest >= 3:
            return Done(0, NEW_HELP)
        return Done(1, err=f"invalid option\n{OLD_HELP}") if "-p" in words else Done(0, OLD_HELP)

    def _start(self, pipe: str, words: list[str], env: Mapping[str, str]) -> Done:
        if pipe in self.daemons:
            return Done(1, err="An instance of this daemon is already running")
        if not Path(pipe).is_dir():
            return Done(1, err=f"Failed to open {pipe}: No such file or directory")
        wanted = int(
            env.get("CUDA_MPS_PROTOCOL_VERSION") or (words[words.index("-p") + 1] if "-p" in words else 2)
        )
        file = words[words.index("-a") + 1] if "-a" in words else ""

        def act() -> None:
            process = self.world.spawn(CGROUP, name=PROGRAM)
            protocol = min(wanted, self.newest)
            daemon = Daemon(process.pid, pipe, env.get("CUDA_VISIBLE_DEVICES", ""), protocol)
            self.daemons[pipe] = daemon
            if file:
                NamedCommands(self, daemon).apply(Path(file).read_text())

        self.change("start", act)
        return Done(0)

    def _classic(self, daemon: Daemon, words: list[str]) -> Done:
        verb, rest = words[0], words[1:]
        if verb == "get_server_list":
            return Done(0, "".join(f"{server.pid}\n" for server in daemon.servers.values()))
        if verb == "start_server":
            self.change("server.start", lambda: ignore(self.server_for(daemon, int(rest[1]), "")))
            return Done(0)
        if verb == "quit":
            if any(server.clients for server in daemon.servers.values()):
                # It takes no new clients and waits for those there: nobody waits as long here.
                return Done(1, err="timed out while MPS clients are still connected")
            self.change("quit", lambda: self.end(daemon))
            return Done(0)
        if "default" in verb:
            return self._defaults(daemon, verb, rest)
        server = daemon.servers.get(rest[0]) if rest else None
        if server is None:
            return Done(1, err=f"invalid command or no such server: {' '.join(words)}")
        return self._of_server(server, verb, rest[1:])

    def _defaults(self, daemon: Daemon, verb: str, rest: list[str]) -> Done:
        if verb == "get_default_active_thread_percentage":
            return Done(0, f"{daemon.percent:.1f}\n")
        if verb == "get_default_device_pinned_mem_limit":
            return Done(0, f"{self.shown(daemon.limits.get(rest[0]))}\n")
        if verb == "set_default_active_thread_percentage":
            self.change("default", lambda: setattr(daemon, "percent", float(rest[0])))
            return Done(0, f"{daemon.percent:.1f}\n")
        if verb == "set_default_device_pinned_mem_limit" and (mib := parsed(rest[1])) is not None:
            # The device is not looked at; a server will do that, and say nothing.
            self.change("default", lambda: daemon.limits.__setitem__(rest[0], mib))
            return Done(0)
        return Done(1, err=f"invalid command: {verb}")

    def _of_server(self, server: Server, verb: str, rest: list[str]) -> Done:
        if verb == "get_server_status":
            return Done(0, f"{server.status}\n")
        if verb == "get_client_list":
            return Done(0, "".join(f"{pid}\n" for pid in server.clients))
        if verb == "get_active_thread_percentage":
            return Done(0, f"{server.limits.percent:.1f}\n")
        if verb == "get_device_pinned_mem_limit":
            known = rest[0] in (server.device, "0")
            return Done(0, f"{self.shown(server.limits.memory_mib if known else None)}\n")
        if verb == "set_active_thread_percentage":
            limits = Limits(float(rest[0]), server.limits.memory_mib)
            self.change("server.set", lambda: setattr(server, "limits", limits))
            return Done(0, f"{server.limits.percent:.1f}\n")
        if verb == "set_device_pinned_mem_limit" and (mib := parsed(rest[1])) is not None:
            if rest[0] in (server.device, "0"):
                limits = Limits(server.limits.percent, mib)
                self.change("server.set", lambda: setattr(server, "limits", limits))
            return Done(0)
        if verb == "terminate_client" and int(rest[0]) in server.clients:
            self.change("terminate", lambda: self.terminate(int(rest[0])))
            return Done(0, "0\n")
        return Done(1, err=f"invalid command: {verb} {' '.join(rest)}")

    def _door(self, pipe: str) -> tuple[Daemon | None, str]:
        for folder, daemon in self.daemons.items():
            if pipe == folder and daemon.protocol == 2:
                return daemon, ""
            inside = pipe.removeprefix(f"{folder}/")
            server, _, space = inside.partition("/")
            if inside != pipe and server in daemon.servers and (space or "default") in daemon.spaces:
                return daemon, f"{server}/{space or 'default'}"
        return None, ""

    def _limits_of(self, daemon: Daemon, server: Server, space: str, env: Mapping[str, str]) -> Limits:
        base = server.limits if daemon.protocol == 2 else daemon.spaces[space.partition("/")[2]]
        percent, memory = base.percent, base.memory_mib
        own = env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        if own and daemon.protocol == 2:
            percent = min(percent, float(own))
        entries = dict(
            part.partition("=")[::2]
            for part in env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(",")
            if part
        )
        seen = {server.device, "0"}
        if not set(entries) <= seen:
            # One entry for a device that it does not see, and the client drops every memory limit.
            return Limits(percent, None)
        for value in entries.values():
            mib = parsed(value)
            if mib is not None:
                memory = mib if memory is None else min(memory, mib)
        return Limits(percent, memory)

    def _pass(self) -> None:
        """Let die what died with its process: daemons, servers, clients; faults pass with their clients."""
        alive = self.world.processes
        for pipe in [pipe for pipe, daemon in self.daemons.items() if daemon.pid not in alive]:
            for server in self.daemons[pipe].servers.values():
                self.world.signal(server.pid, kill=True)
            del self.daemons[pipe]
        for daemon in self.daemons.values():
            for name in [name for name, server in daemon.servers.items() if server.pid not in alive]:
                del daemon.servers[name]
            for server in daemon.servers.values():
                _age(server, alive)


def _age(server: Server, alive: Mapping[int, SimulatedProcess]) -> None:
    if server.status == "INITIALIZING":
        server.looks -= 1
        server.status = "INITIALIZING" if server.looks > 0 else "ACTIVE"
    for pid in [pid for pid in server.clients if pid not in alive]:
        if server.clients.pop(pid).is_busy and server.clients:
            # Killed with work in flight: the worst that is documented, others are left undefined.
            server.status = "FAULT"
    if server.status == "FAULT" and not server.clients:
        server.status = "ACTIVE"


def parsed(value: str) -> int | None:
    """Return a limit such as ``10G`` in MiB, None when it is none."""
    found = re.fullmatch(r"(\d+)([MG])B?", value.strip())
    return int(found[1]) * MIB[found[2]] if found else None
