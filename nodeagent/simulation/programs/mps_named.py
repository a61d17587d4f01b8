"""Protocol 3 of the simulated MPS program: modules and verbs as words, lists as CSV."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from nodeagent.host.shell import Done
from nodeagent.simulation.programs.mps_state import Daemon, Limits, Server

NAME = re.compile(r"[a-z0-9_]{1,64}")
STATUS = {"ACTIVE": "Ready", "INITIALIZING": "Initializing", "FAULT": "Fault"}
SERVER_KEYS = {"allowed_devices", "pinned_memory_limit", "active_thread_percentage", "uid", "namespaces"}
SPACE_KEYS = {"pinned_memory_limit", "active_thread_percentage"}


class BadCommandError(Exception):
    """The program does not do that; it says why."""


class MpsProgram(Protocol):
    """What stands behind the words: the life of daemons and servers (SimulatedMps)."""

    def change(self, name: str, act: Callable[[], None]) -> None:
        """Do something, with the hook called before and after."""
        ...

    def launch(self, daemon: Daemon, name: str, uid: int, device: str, limits: Limits) -> None:
        """Start a server."""
        ...

    def terminate(self, pid: int) -> None:
        """End a client."""
        ...

    def end(self, daemon: Daemon) -> None:
        """End a daemon with all its servers."""
        ...

    def shown(self, mib: int | None) -> str:
        """Return a memory limit as the program shows it."""
        ...


class NamedCommands:
    """Answers one command of protocol 3 for one daemon."""

    def __init__(self, mps: MpsProgram, daemon: Daemon) -> None:
        self._mps = mps
        self._daemon = daemon

    def run(self, words: Sequence[str]) -> Done:
        """Run one command."""
        places = [word for word in words if not word.startswith("-")]
        flags = dict(word.lstrip("-").partition("=")[::2] for word in words if word.startswith("-"))
        try:
            if "q" in flags or "quit" in flags:
                self._mps.change("quit", lambda: self._mps.end(self._daemon))
                return Done(0)
            module, verb, *names = places
            answer = getattr(self, f"_{module}_{verb}", None)
            if answer is None:
                raise BadCommandError(f"unknown command: {module} {verb}")
            return Done(0, answer(names, flags))
        except (BadCommandError, ValueError) as no:
            return Done(1, err=f"Error: {no}")

    def apply(self, text: str) -> None:
        """Take a configuration file as the daemon does at its start."""
        for name, server in tomllib.loads(text)["servers"].items():
            unknown = set(server) - SERVER_KEYS
            if unknown:
                raise BadCommandError(f"unknown keys: {sorted(unknown)}")
            self._make(name, int(server["uid"]), server["allowed_devices"], _limits(server, Limits()))
            for space, said in server.get("namespaces", {}).items():
                if set(said) - SPACE_KEYS:
                    raise BadCommandError(f"unknown keys: {sorted(set(said) - SPACE_KEYS)}")
                self._open(name, space, _limits(said, Limits()))

    def _make(self, name: str, uid: int, device: str, limits: Limits) -> None:
        if not NAME.fullmatch(name):
            raise BadCommandError(f"invalid server name: {name}")
        # A device that is not there is accepted: the server ends at once and is listed no more.
        self._mps.launch(self._daemon, name, uid, device, limits)
        self._daemon.uid = uid
        self._daemon.spaces = {}
        self._open(name, "default", limits)

    def _open(self, server: str, space: str, limits: Limits) -> None:
        self._daemon.spaces[space] = limits
        Path(self._daemon.pipe, server, space).mkdir(parents=True, exist_ok=True)

    def _shut(self, server: str, space: str) -> None:
        del self._daemon.spaces[space]
        shutil.rmtree(Path(self._daemon.pipe, server, space), ignore_errors=True)

    def _server_create(self, names: list[str], flags: dict[str, str]) -> str:
        if names[0] in self._daemon.servers:
            raise BadCommandError(f"server '{names[0]}' already exists")
        device = flags.get("allowed-devices", self._daemon.device)
        self._mps.change("server.create", lambda: self._make(names[0], int(flags["uid"]), device, Limits()))
        return ""

    def _server_list(self, names: list[str], flags: dict[str, str]) -> str:
        return _csv(
            [
                server.name,
                server.uid,
                server.pid,
                STATUS[server.status],
                self._pipe(server),
                server.device,
                "-",
            ]
            for server in self._daemon.servers.values()
        )

    def _server_set(self, names: list[str], flags: dict[str, str]) -> str:
        self._server(names[0])
        limits = _flagged(flags, self._daemon.spaces["default"])
        self._mps.change("server.set", lambda: self._daemon.spaces.__setitem__("default", limits))
        return ""

    def _namespace_create(self, names: list[str], flags: dict[str, str]) -> str:
        self._server(flags["server"])
        if names[0] in self._daemon.spaces or not NAME.fullmatch(names[0]):
            raise BadCommandError(f"namespace '{names[0]}' exists already or has an invalid name")
        # Nothing is inherited: a new namespace has no limits at all.
        self._mps.change("namespace.create", lambda: self._open(flags["server"], names[0], Limits()))
        return ""

    def _namespace_set(self, names: list[str], flags: dict[str, str]) -> str:
        limits = _flagged(flags, self._space(names[0]))
        self._mps.change("namespace.set", lambda: self._daemon.spaces.__setitem__(names[0], limits))
        return ""

    def _namespace_delete(self, names: list[str], flags: dict[str, str]) -> str:
        self._space(names[0])
        server = self._server(flags["server"])
        inside = [pid for pid, client in server.clients.items() if client.space.endswith(f"/{names[0]}")]
        if inside and "force" not in flags:
            raise BadCommandError(f"namespace '{names[0]}' has active clients")
        self._mps.change("namespace.delete", lambda: self._shut(server.name, names[0]))
        return ""

    def _namespace_list(self, names: list[str], flags: dict[str, str]) -> str:
        server = self._server(flags["server"])
        return _csv(
            [
                name,
                server.name,
                STATUS[server.status],
                self._mps.shown(limits.memory_mib) or "-",
                f"{limits.percent:.2f}",
                0,
                f"{self._pipe(server)}/{name}",
            ]
            for name, limits in self._daemon.spaces.items()
        )

    def _client_list(self, names: list[str], flags: dict[str, str]) -> str:
        return _csv(
            [pid, server.name, 0, client.space.partition("/")[2], "python train.py, again"]
            for server in self._daemon.servers.values()
            for pid, client in server.clients.items()
        )

    def _client_terminate(self, names: list[str], flags: dict[str, str]) -> str:
        pid = int(names[0])
        if not any(pid in server.clients for server in self._daemon.servers.values()):
            raise BadCommandError(f"no client {pid}")
        self._mps.change("client.terminate", lambda: self._mps.terminate(pid))
        return ""

    def _server(self, name: str) -> Server:
        if name not in self._daemon.servers:
            raise BadCommandError(f"server '{name}' not found")
        return self._daemon.servers[name]

    def _space(self, name: str) -> Limits:
        if name not in self._daemon.spaces:
            raise BadCommandError(f"namespace '{name}' not found")
        return self._daemon.spaces[name]

    def _pipe(self, server: Server) -> str:
        return f"{self._daemon.pipe}/{server.name}"


def _flagged(flags: dict[str, str], before: Limits) -> Limits:
    return _limits({key.replace("-", "_"): value for key, value in flags.items()}, before)


def _limits(said: dict[str, Any], before: Limits) -> Limits:
    percent, memory = before.percent, before.memory_mib
    if "active_thread_percentage" in said:
        percent = float(said["active_thread_percentage"])
        if not 1 <= percent <= 100:
            raise BadCommandError(f"invalid active thread percentage: {percent:g}")
    if "pinned_memory_limit" in said:
        found = re.fullmatch(r"(\d+)([MG])", said["pinned_memory_limit"])
        if found is None:
            raise BadCommandError(f"invalid memory limit: {said['pinned_memory_limit']}")
        memory = int(found[1]) * (1024 if found[2] == "G" else 1)
    return Limits(percent, memory)


def _csv(rows: Any) -> str:
    return "".join(",".join(str(cell) for cell in row) + "\n" for row in rows)
