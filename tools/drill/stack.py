"""The stack that is broken: its processes by name, its agents behind proxies, its stores by their sockets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from portal.embedded.places import StackPaths, engine_account, socket_folder
from tools.bench.stack import ROOT, BenchStack
from tools.drill.fleet import BOARDS
from tools.drill.proxy import ChaosProxy

LOST_AFTER_S = 20
DISK_MIB = 600
AGENT_REST_S = 0.3


@dataclass
class DrillAgent:
    """One node's agent: kept up as a service manager would, until the drill says otherwise."""

    node: str
    proxy: ChaosProxy
    process: subprocess.Popen[bytes] | None = None
    wall_offset_s: float = 0.0
    is_wanted: bool = True


@dataclass
class DrillStack(BenchStack):
    """A stack without the demo, with a fleet of its own and a folder of orders for failpoints."""

    months: int = 3
    has_small_disk: bool = False
    world: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, DrillAgent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.orders = self.data.with_name("failpoints")
        self.orders.mkdir(mode=0o777, exist_ok=True)
        self.orders.chmod(0o777)
        self.extra = {
            "BERTH_DRILL": "1",
            "BERTH_FAILPOINTS": str(self.orders),
            "BERTH_NODE_LOST_AFTER_S": str(LOST_AFTER_S),
            "BERTH_LEASE_GRACE_S": "2",
            "BERTH_ACCEPT_NODES": "auto",
        }
        self._watching = threading.Event()
        self._lock = threading.Lock()

    @property
    def places(self) -> StackPaths:
        postgres = self.data / "postgres"
        return StackPaths(self.data, postgres, socket_folder(self.data, Path(tempfile.gettempdir())))

    def mount_small_disk(self) -> bool:
        """Give PostgreSQL's folder a disk of its own that can be filled; False where this account cannot mount."""
        account, folder = engine_account(), self.data / "postgres"
        folder.mkdir(parents=True, exist_ok=True)
        self.data.chmod(0o711)
        options = f"size={DISK_MIB}m,mode=0700,uid={account.uid},gid={account.gid}"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
        )
        self.has_small_disk = made.returncode == 0
        if not self.has_small_disk:
            folder.rmdir()
        return self.has_small_disk

    def unmount_small_disk(self) -> None:
        if self.has_small_disk:
            subprocess.run(["umount", "-l", str(self.data / "postgres")], capture_output=True, check=False)

    def start_fleet(self) -> None:
        """Make the rows, start each node's agent behind its proxy and wait until all are connected."""
        made = subprocess.run(
            [sys.executable, "-m", "tools.drill.fleet", str(self.months)],
            cwd=ROOT, env=self.environment(), capture_output=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"the rows of the drill were not made:\n{made.stderr.decode()}")
        self.world = json.loads(made.stdout)
        for name, secret in self.world["enrol"].items():
            spec = self.data / f"{name}.json"
            boards = [{"board": b, "count": n, "modes": list(modes)} for b, n, modes in BOARDS[name]]
            spec.write_text(json.dumps({"boards": boards}))
            proxy = ChaosProxy("127.0.0.1", int(self.url.rsplit(":", 1)[1]))
            proxy.start()
            self.nodes[name] = DrillAgent(name, proxy)
            self.start_agent(name, secret)
        self._wait(lambda: all("connected to" in self.log_of(name) for name in self.nodes))
        threading.Thread(target=self._keep_agents_up, daemon=True).start()

    def agent_options(self, name: str) -> dict[str, str]:
        """Return what the agent of a node is started with."""
        return {
            "portal": f"ws://127.0.0.1:{self.nodes[name].proxy.port}",
            "node": name,
            "state": str(self.data / "agents" / name),
            "run-dir": str(self.data / "agents" / f"{name}.run"),
            "driver": "simulated",
            "spec": str(self.data / f"{name}.json"),
        }

    def agent_environment(self) -> dict[str, str]:
        """Return what an agent may know: neither database nor broker."""
        hidden = ("DATABASE_URL", "REDIS_URL", "BERTH_SECRET_KEY", "BERTH_SECRET_KEY_FILE")
        return {key: value for key, value in self.environment().items() if key not in hidden}

    def start_agent(self, name: str, secret: str = "", more: tuple[str, ...] = ()) -> None:
        agent = self.nodes[name]
        options = self.agent_options(name) | ({"enrol-token": secret} if secret else {})
        words = [part for key, value in options.items() for part in (f"--{key}", value)]
        with (self.data / f"{name}.log").open("ab") as out:
            agent.process = subprocess.Popen(
                [sys.executable, "-m", "tools.drill.agent", str(agent.wall_offset_s), *words, *more],
                cwd=ROOT, env=self.agent_environment(), stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def _keep_agents_up(self) -> None:
        while not self._watching.wait(AGENT_REST_S):
            with self._lock:
                for name, agent in self.nodes.items():
                    if agent.is_wanted and agent.process is not None and agent.process.poll() is not None:
                        self.start_agent(name)

    def stop_agent(self, name: str, signum: int = signal.SIGTERM) -> None:
        """End a node's agent for good, until ``start_agent``."""
        agent = self.nodes[name]
        with self._lock:
            agent.is_wanted = False
        if agent.process is not None:
            with suppress(ProcessLookupError):
                os.kill(agent.process.pid, signal.SIGCONT)
                os.kill(agent.process.pid, signum)
            agent.process.wait(15)

    def want_agent(self, name: str) -> None:
        with self._lock:
            self.nodes[name].is_wanted = True

    def log_of(self, name: str) -> str:
        """Return what a node's agent or a child of the supervisor wrote."""
        own = self.data / f"{name}.log"
        path = own if own.exists() else self.places.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pid(self, name: str) -> int | None:
        """Return the process of a node's agent or of a child of the supervisor; None while there is none."""
        if name in self.nodes:
            process = self.nodes[name].process
            return process.pid if process is not None and process.poll() is None else None
        assert self.process is not None
        for pid in children(self.process.pid):
            with suppress(OSError):
                if Path(os.readlink(f"/proc/{pid}/fd/1")).stem == name and state_of(pid) != "Z":
                    return pid
        return None

    def tree(self, name: str) -> list[int]:
        """Return a process with all below it."""
        pid = self.pid(name)
        found = [pid] if pid else []
        for one in found:
            found += [child for child in children(one) if child not in found]
        return found

    def database(self, **more: Any) -> psycopg.Connection[Any]:
        """Open a session of the drill's own, as the portal's database user."""
        return psycopg.connect(
            self.places.database_url(), autocommit=True, connect_timeout=3, application_name="drill", **more
        )

    def valkey(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.places.valkey_socket), socket_timeout=3, socket_connect_timeout=3
        )

    def order(self, point: str, action: str) -> None:
        """Order a fault at a failpoint, for whoever passes it first."""
        draft = self.orders / f".{point}"
        draft.write_text(action)
        draft.chmod(0o666)
        draft.rename(self.orders / point)

    def revoke_orders(self) -> list[str]:
        """Take back the orders that nobody has met; returns their points."""
        left = [path for path in self.orders.iterdir() if ".hit." not in path.name and path.name[0] != "."]
        for path in left:
            path.unlink(missing_ok=True)
        return sorted(path.name for path in left)

    def heal(self) -> None:
        """Take back every order and every fault that lasts."""
        self.revoke_orders()
        for agent in self.nodes.values():
            agent.proxy.heal()
            agent.is_wanted = True
        for name in ("web", "worker", "beat", "valkey", "postgres", *self.nodes):
            for pid in self.tree(name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def hits(self, point: str) -> list[tuple[int, float]]:
        """Return the processes that met an order at a failpoint, and when (monotonic), the latest last."""
        found = sorted(self.orders.glob(f"{point}.hit.*"), key=lambda path: int(path.name.rpartition(".")[2]))
        words = [path.name.split(".")[-2:] for path in found]
        return [(int(pid), int(at_ns) / 1e9) for pid, at_ns in words]

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the portal beside the stack."""
        return subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT, env=self.environment(), text=True, capture_output=True, timeout=180, check=False,
        )  # fmt: skip

    def second(self, kind: str) -> subprocess.Popen[bytes]:
        """Start one more worker or beat beside the supervisor's."""
        options = {
            "worker": ["worker", "-c", "1", "-n", "second@drill", "--without-gossip", "--without-mingle"],
            "beat": ["beat", "-s", str(self.data / "second-beat"), "--pidfile="],
        }
        env = self.environment()
        secret = env.get("BERTH_SECRET_KEY_FILE") or str(self.places.secret_key)
        with (self.data / f"second-{kind}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "portal.celery", *options[kind]],
                cwd=ROOT, env={**env, "BERTH_SECRET_KEY_FILE": secret, "BERTH_LOG_LEVEL": "INFO"},
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        self._watching.set()
        for name, agent in self.nodes.items():
            with suppress(subprocess.TimeoutExpired):
                self.stop_agent(name, signal.SIGKILL)
            agent.proxy.stop()
        for name in ("web", "worker", "beat", "valkey", "postgres"):
            for pid in self.tree(name) if self.process is not None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        super().stop()


@contextmanager
def running(folder: Path | None = None, *, months: int, wants_small_disk: bool) -> Iterator[DrillStack]:
    """Give a fresh stack with its fleet at work, and take everything away afterwards."""
    room = Path(folder or tempfile.mkdtemp(prefix="berth-drill-"))
    room.mkdir(parents=True, exist_ok=True)
    room.chmod(0o755)
    stack = DrillStack(room / "data", is_demo=False, months=months)
    stack.data.mkdir(exist_ok=True)
    try:
        if wants_small_disk:
            stack.mount_small_disk()
        stack.start()
        stack.start_fleet()
        yield stack
    finally:
        try:
            with suppress(OSError, subprocess.TimeoutExpired):
                stack.stop()
        finally:
            if stack.process is not None:
                stack.process.kill()
                stack.process.wait()
            stack.unmount_small_disk()
            if folder is None:
                shutil.rmtree(room, ignore_errors=True)


def children(pid: int) -> list[int]:
    """Return the children of a process; none where it is gone."""
    with suppress(OSError):
        found: list[int] = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(part) for part in (task / "children").read_text().split()]
        return found
    return []


def state_of(pid: int) -> str:
    """Return the letter under which the kernel knows a process's state; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    """Say whether a process has ended."""
    return state_of(pid) in ("", "Z", "X")


def until(ready: Any, within_s: float, every_s: float = 0.02) -> bool:
    """Wait for something to become true; False when it did not in time."""
    end = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
