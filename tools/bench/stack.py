"""An embedded stack of its own, in a temporary folder: started, measured, stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portal.embedded.places import StackPaths, socket_folder
from tools.bench import fleet, notebook

ROOT = Path(__file__).resolve().parents[2]
FIRST_PORT = "18500"  # the stack takes the next free one by itself
UP_WITHIN_S, DOWN_WITHIN_S = 120.0, 60.0
NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "BERTH_DATA", "BERTH_PORT", "BERTH_DEMO")


@dataclass
class BenchStack:
    """A supervisor in a process of its own."""

    data: Path
    is_demo: bool
    extra: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    url: str = ""
    up_after_s: float = 0.0

    @property
    def said(self) -> str:
        return self._said.read_text() if self._said.exists() else ""

    @property
    def _said(self) -> Path:
        return self.data.with_name(self.data.name + ".said")

    def start(self) -> None:
        """Start and wait for the first page; ``up_after_s`` is how long that took."""
        env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        env |= {"BERTH_DATA": str(self.data), "BERTH_PORT": FIRST_PORT, "BERTH_LOG_LEVEL": "WARNING"}
        env |= {"BERTH_DEMO": "1" if self.is_demo else "0", "BERTH_ACCEPT_NODES": "auto", **self.extra}
        began = time.monotonic()
        with self._said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "portal.embedded", "up"],
                cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._wait(lambda: "Berth is up" in self.said)
        self.url = re.search(r"Berth is up: (http://[\d.:]+)", self.said)[1]  # type: ignore[index]
        read_page(self.url + "/sign-in/")
        self.up_after_s = time.monotonic() - began

    def stop(self) -> None:
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait(10)
        self.agents.clear()
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(DOWN_WITHIN_S)
            self.process = None

    def environment(self) -> dict[str, str]:
        """Return what a process needs to reach the stack's database and broker."""
        places = StackPaths(self.data, self.data, socket_folder(self.data, Path(tempfile.gettempdir())))
        return {
            **os.environ,
            "DATABASE_URL": places.database_url(),
            "REDIS_URL": places.redis_url(),
            "BERTH_DATA": str(self.data),
            "BERTH_LOG_LEVEL": "WARNING",
            **self.extra,
        }

    def pids(self) -> list[int]:
        """Return the processes of the stack, its agents too."""
        assert self.process is not None
        found = [self.process.pid, *(agent.pid for agent in self.agents)]
        for pid in found:
            found += [p for p in _children(pid) if p not in found]
        return found

    def start_bench_fleet(self) -> dict[str, Any]:
        """Make the rows of the benchmark fleet, start its agents, return what a client needs."""
        command = [sys.executable, "-m", "tools.bench.fleet"]
        made = subprocess.run(command, cwd=ROOT, env=self.environment(), capture_output=True, check=True)
        world: dict[str, Any] = json.loads(made.stdout)
        self.agents = [self.start_agent(name, secret) for name, secret in world["enrol"].items()]
        logs = [self.data / f"{name}.log" for name in world["enrol"]]
        self._wait(lambda: all("connected to" in log.read_text() for log in logs))
        return world

    def pid_of(self, name: str) -> int | None:
        """Return the process of a child of the supervisor, by the log that it writes; None while there is none."""
        for pid in self.pids():
            with suppress(OSError):
                if Path(os.readlink(f"/proc/{pid}/fd/1")).stem == name:
                    return pid
        return None

    def start_agent(self, name: str, secret: str) -> subprocess.Popen[bytes]:
        """Start a node's agent; one that was killed finds its folder again."""
        arguments = {
            "portal": self.url.replace("http", "ws", 1),
            "node": name,
            "state": str(self.data / "agents" / name),
            "driver": "simulated",
            "board": fleet.BOARD,
            "count": str(fleet.COUNT),
            "modes": "exclusive",
            "enrol-token": secret,
        }
        options = [part for key, value in arguments.items() for part in (f"--{key}", value)]
        with (self.data / f"{name}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "nodeagent", *options], cwd=ROOT, stdout=out, stderr=out,
                env={**os.environ, **notebook.environment()},
            )  # fmt: skip

    def _wait(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + UP_WITHIN_S
        while not ready():
            if self.process is None or self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the stack did not come up:\n{self.said}")
            time.sleep(0.01)


@contextmanager
def running(*, is_demo: bool) -> Iterator[BenchStack]:
    """Give a fresh stack that is up, and take it away afterwards."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        os.chmod(folder, 0o755)
        stack = BenchStack(Path(folder) / "data", is_demo)
        try:
            stack.start()
            yield stack
        finally:
            with suppress(OSError, subprocess.TimeoutExpired):
                stack.stop()


def read_page(url: str) -> None:
    """Read a page and everything of it; raises OSError."""
    from urllib.request import urlopen

    with urlopen(url, timeout=30) as page:
        page.read()


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(part) for part in text.split()]
