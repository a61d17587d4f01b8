"""The service manager of the simulated host: systemd-run, systemctl and busctl over its World of processes.

Only what Berth says to systemd is understood; anything else is refused, as a typing mistake would be. Each change
happens between two calls of ``on_change`` ("unit.start.before", "unit.start.after"), where a test may let the
agent die. Time passes by ``tick`` alone: timers fire, and what outlived its grace is killed. Nobody needs the
agent for that, as on a real host.
"""

from __future__ import annotations

import errno
import fnmatch
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from nodeagent.host.shell import Done
from nodeagent.simulation.machine.world import Program, World

ROOT = "/sys/fs/cgroup"
PROC_CGROUP = re.compile(r"/proc/(\d+)/(cgroup|comm|environ)")
RUN_OPTIONS = ("unit", "slice", "service-type", "description", "on-active", "collect", "quiet")
MULTIPLE = ("DeviceAllow", "Environment")
SETTABLE = ("DevicePolicy", "DeviceAllow", "MemoryMax", "CPUQuota")
NOT_LOADED = 5
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class SimulatedUnit:
    """One service. ``properties`` are as given; those that may repeat are lists joined by newlines."""

    name: str
    slice: str
    properties: dict[str, str]
    main_pid: int
    state: str = "active"
    kill_at: float | None = None

    @property
    def cgroup(self) -> str:
        """Return its cgroup by its path from the root."""
        return f"/{self.slice}/{self.name}"


@dataclass(slots=True)
class SimulatedTimer:
    """One timer that runs a command when it is due, and is gone then."""

    name: str
    due: float
    command: tuple[str, ...]


def _nothing(_: str) -> None:
    return None


def _alone(
    method: Callable[Concatenate[SimulatedSystemd, P], R],
) -> Callable[Concatenate[SimulatedSystemd, P], R]:
    """Let one thread at a time in: an agent opens and closes leases from several."""

    @wraps(method)
    def call(self: SimulatedSystemd, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return call


@dataclass(slots=True)
class SimulatedSystemd:
    """Units and timers of one simulated host; they outlive the agent, not a reboot. ``now`` is monotonic seconds."""

    world: World
    now: float = 1000.0
    version: int = 252
    on_change: Callable[[str], None] = _nothing
    units: dict[str, SimulatedUnit] = field(default_factory=dict)
    timers: dict[str, SimulatedTimer] = field(default_factory=dict)
    missing_nodes: set[str] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def programs(self) -> dict[str, Program]:
        """Return the programs of this manager, for a SimulatedShell."""
        return {"systemd-run": self._systemd_run, "systemctl": self._systemctl, "busctl": self._busctl}

    def clock_s(self) -> float:
        """Return the host's monotonic clock."""
        return self.now

    @_alone
    def tick(self, now: float) -> None:
        """Let time pass: stop units whose timers are due, kill what outlived its grace."""
        self.now = max(now, self.now)
        for timer in sorted(self.timers.values(), key=lambda one: one.due):
            if timer.due <= self.now:
                del self.timers[timer.name]
                self._systemctl(timer.command, "", {})
        for unit in list(self.units.values()):
            if unit.kill_at is not None and unit.kill_at <= self.now:
                self._end_processes(unit, kill=True)
        self._settle()

    @_alone
    def reboot(self) -> None:
        """Forget all units and timers, end all processes."""
        self.units.clear()
        self.timers.clear()
        self.world.reboot()
        self.now = 10.0

    # What the kernel shows of it

    @_alone
    def read(self, path: str) -> str:
        """Return the text of a file below /sys/fs/cgroup or of a process; raises OSError for any other."""
        if path == "/proc/1/comm":
            return "systemd\n"
        if found := PROC_CGROUP.fullmatch(path):
            process = self.world.processes.get(int(found[1]))
            if process is None:
                raise FileNotFoundError(errno.ENOENT, "no such process", path)
            if found[2] == "environ":
                return self._environ(process.cgroup)
            return f"0::{process.cgroup}\n" if found[2] == "cgroup" else f"{process.name}\n"
        self._settle()
        cgroup = path.removeprefix(ROOT).removesuffix("/cgroup.procs")
        pids = [p.pid for p in self.world.processes.values() if p.cgroup == cgroup]
        if not path.endswith("/cgroup.procs") or not (pids or cgroup in self._cgroups()):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return "".join(f"{pid}\n" for pid in pids)

    @_alone
    def folders(self, path: str) -> list[str]:
        """Return the cgroups right below one."""
        above = path.removeprefix(ROOT)
        return sorted(f"{ROOT}{one}" for one in self._cgroups() if one.rpartition("/")[0] == above)

    @_alone
    def write(self, path: str, text: str) -> None:
        """Write to cgroup.kill of a cgroup; raises OSError where there is none."""
        cgroup = path.removeprefix(ROOT).removesuffix("/cgroup.kill")
        if not path.endswith("/cgroup.kill") or text != "1" or cgroup not in self._cgroups():
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.on_change("cgroup.kill.before")
        for process in self.world.inside(cgroup):
            self.world.signal(process.pid, kill=True)
        self._settle()
        self.on_change("cgroup.kill.after")

    def exists(self, path: str) -> bool:
        """Say whether a file exists: this host has version 2 of cgroups and all device nodes but the missing ones."""
        return path == f"{ROOT}/cgroup.controllers" or (
            path.startswith("/dev/") and path not in self.missing_nodes
        )

    def _cgroups(self) -> set[str]:
        """Return all cgroups: those of units, and of processes with all above them."""
        found = {unit.cgroup for unit in self.units.values()}
        for process in self.world.processes.values():
            path = process.cgroup
            while path:
                found.add(path)
                path = path.rpartition("/")[0]
        return found

    def _environ(self, cgroup: str) -> str:
        unit = next((one for one in self.units.values() if one.cgroup == cgroup), None)
        pairs = unit.properties.get("Environment", "") if unit else ""
        return "".join(f"{pair}\0" for pair in pairs.split("\n") if pair)

    # systemd-run

    @_alone
    def _systemd_run(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        try:
            options, properties, command = _parse_run(argv)
        except ValueError as no:
            return Done(1, err=str(no))
        if "on-active" in options:
            return self._start_timer(options, command)
        name = options["unit"]
        if name in self.units:
            return Done(1, err=f"Failed to start transient service unit: Unit {name} was already loaded")
        self.on_change("unit.start.before")
        unit = SimulatedUnit(name, options.get("slice", "system.slice"), properties, 0)
        unit.main_pid = self.world.spawn(unit.cgroup, user=properties.get("User", ""), name=command[0]).pid
        self.units[name] = unit
        self.on_change("unit.start.after")
        return Done(0)

    def _start_timer(self, options: Mapping[str, str], command: tuple[str, ...]) -> Done:
        name = f"{options['unit']}.timer"
        if name in self.timers:
            return Done(1, err=f"Failed to start transient timer unit: Unit {name} was already loaded")
        self.on_change("timer.start.before")
        self.timers[name] = SimulatedTimer(
            name, self.now + int(options["on-active"].removesuffix("s")), command
        )
        self.on_change("timer.start.after")
        return Done(0)

    # systemctl

    @_alone
    def _systemctl(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        self._settle()
        flags = [word for word in argv[1:] if word.startswith("--")]
        verb, *names = [word for word in argv[1:] if not word.startswith("--")] or ["--version"]
        verbs: dict[str, Callable[[list[str], list[str]], Done]] = {
            "show": self._show, "stop": self._stop, "kill": self._kill, "reset-failed": self._reset,
            "set-property": self._set, "list-units": self._list,
        }  # fmt: skip
        if "--version" in flags:
            return Done(0, f"systemd {self.version} ({self.version}.1-1)\n+PAM +AUDIT")
        if verb not in verbs:
            return Done(1, err=f"Unknown command verb {verb}.")
        return verbs[verb](names, flags)

    def _show(self, names: list[str], flags: list[str]) -> Done:
        wanted = [flag.partition("=")[2] for flag in flags if flag.startswith("--property=")]
        unit = self.units.get(names[0])
        facts = _facts(unit)
        lines = []
        for name in wanted:
            if name == "DeviceAllow":
                rules = unit.properties.get(name, "").split("\n") if unit else []
                lines += [f"DeviceAllow={rule}" for rule in rules if rule]
            elif name in facts:
                lines.append(f"{name}={facts[name]}")
        return Done(0, "\n".join(lines) + "\n")

    def _stop(self, names: list[str], flags: list[str]) -> Done:
        unknown = []
        for name in names:
            if name in self.timers:
                self.on_change("timer.stop.before")
                del self.timers[name]
                self.on_change("timer.stop.after")
            elif name in self.units:
                self._stop_unit(self.units[name])
            else:
                unknown.append(name)
        return Done(NOT_LOADED, err=f"Failed to stop {unknown[0]}: Unit not loaded.") if unknown else Done(0)

    def _stop_unit(self, unit: SimulatedUnit) -> None:
        if unit.state == "deactivating":
            return
        self.on_change("unit.stop.before")
        unit.state = "deactivating"
        unit.kill_at = self.now + int(unit.properties.get("TimeoutStopSec", "90"))
        self._end_processes(unit, kill=False)
        self._settle()
        self.on_change("unit.stop.after")

    def _kill(self, names: list[str], flags: list[str]) -> Done:
        unit = self.units.get(names[0])
        if unit is None:
            return Done(1, err=f"Failed to kill unit {names[0]}: Unit {names[0]} not loaded.")
        self.on_change("unit.kill.before")
        self._end_processes(unit, kill="--signal=SIGKILL" in flags)
        self._settle()
        self.on_change("unit.kill.after")
        return Done(0)

    def _reset(self, names: list[str], flags: list[str]) -> Done:
        if names[0] not in self.units:
            return Done(
                1, err=f"Failed to reset failed state of unit {names[0]}: Unit {names[0]} not loaded."
            )
        if self.units[names[0]].state == "failed":
            del self.units[names[0]]
        return Done(0)

    def _set(self, names: list[str], flags: list[str]) -> Done:
        unit = self.units.get(names[0])
        if unit is None:
            return Done(1, err=f"Failed to set unit properties on {names[0]}: Unit not loaded.")
        bad = [one for one in names[1:] if one.partition("=")[0] not in SETTABLE]
        if bad:
            return Done(
                1, err=f"Failed to set unit properties: Cannot set property {bad[0].partition('=')[0]}"
            )
        self.on_change("unit.set.before")
        for one in names[1:]:
            _assign(unit.properties, one)
        self.on_change("unit.set.after")
        return Done(0)

    def _list(self, names: list[str], flags: list[str]) -> Done:
        kind = next(flag.partition("=")[2] for flag in flags if flag.startswith("--type="))
        rows = [f"{unit.name} loaded {unit.state} running x" for unit in self.units.values()]
        rows += [f"{name} loaded active waiting x" for name in self.timers]
        found = [row for row in rows if fnmatch.fnmatchcase(row.split()[0], names[0])]
        return Done(0, "".join(f"{row}\n" for row in found if row.split()[0].endswith(f".{kind}")))

    # busctl: the one call that moves a process into a delegated unit

    @_alone
    def _busctl(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        self._settle()
        *_, call, signature, name, below, count, pid = argv
        if (call, signature, below, count) != ("AttachProcessesToUnit", "ssau", "", "1"):
            return Done(1, err=f"Unknown method {call}")
        unit = self.units.get(name)
        if unit is None:
            return Done(1, err=f"Call failed: Unit {name} not loaded.")
        if unit.properties.get("Delegate") != "yes":
            return Done(1, err="Call failed: Process migration not available on non-delegated units.")
        self.on_change("unit.attach.before")
        self.world.processes[int(pid)].cgroup = unit.cgroup
        self.on_change("unit.attach.after")
        return Done(0)

    # What happens by itself

    def _end_processes(self, unit: SimulatedUnit, *, kill: bool) -> None:
        for process in self.world.inside(unit.cgroup):
            self.world.signal(process.pid, kill=kill)

    def _settle(self) -> None:
        """Stop units whose first process has ended, and unload those whose last one has."""
        for unit in self.units.values():
            if unit.state == "active" and unit.main_pid not in self.world.processes:
                unit.state = "deactivating"
                unit.kill_at = self.now + int(unit.properties.get("TimeoutStopSec", "90"))
                self._end_processes(unit, kill=False)
        live = {"/".join(process.cgroup.split("/", 3)[:3]) for process in self.world.processes.values()}
        for name in [name for name, unit in self.units.items() if unit.cgroup not in live]:
            del self.units[name]


def _parse_run(argv: Sequence[str]) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Split the words of systemd-run into options, properties and the command; raises ValueError."""
    options: dict[str, str] = {}
    properties: dict[str, str] = {}
    words = list(argv[1:])
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        if name == "property":
            _assign(properties, value)
        elif name == "setenv":
            _assign(properties, f"Environment={value}")
        elif name in RUN_OPTIONS:
            options[name] = value
        elif name != "timer-property":
            raise ValueError(f"systemd-run: unrecognized option '--{name}'")
    if not words or "unit" not in options:
        raise ValueError("Command line to execute required.")
    return options, properties, tuple(words)


def _assign(properties: dict[str, str], one: str) -> None:
    name, _, value = one.partition("=")
    if name in MULTIPLE and value:
        properties[name] = "\n".join(filter(None, [properties.get(name, ""), value]))
    else:
        properties[name] = value


def _facts(unit: SimulatedUnit | None) -> dict[str, str]:
    """Return the properties as ``systemctl show`` prints them; a unit that is not loaded is inactive."""
    if unit is None:
        return {
            "LoadState": "not-found",
            "ActiveState": "inactive",
            "MainPID": "0",
            "ControlGroup": "",
            "User": "",
        }
    quota = unit.properties.get("CPUQuota", "").removesuffix("%")
    return {
        "LoadState": "loaded",
        "ActiveState": unit.state,
        "User": unit.properties.get("User", ""),
        "DevicePolicy": unit.properties.get("DevicePolicy", "auto"),
        "MemoryMax": unit.properties.get("MemoryMax", "infinity"),
        "CPUQuotaPerSecUSec": f"{int(quota) * 10}ms" if quota else "infinity",
        "ControlGroup": unit.cgroup,
        "MainPID": str(unit.main_pid),
    }
