"""The whole of Berth as `make up` runs it, in a temporary folder. Two starts in one test: one stopped, one killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Set for the tests themselves; the stack must find its own.
NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "BERTH_DATA", "PYTEST_VERSION", "DJANGO_SETTINGS_MODULE")

pytestmark = [pytest.mark.stack, pytest.mark.deep]


class Running:
    """A supervisor in a process of its own, and what it said."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._said = data.with_name("said")
        with self._said.open("w") as out:
            self.process = self._run(stdout=out, stderr=subprocess.STDOUT)
        self.url = ""

    @property
    def env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        return {**env, "BERTH_DATA": str(self.data), "BERTH_PORT": "18400"}

    def _run(self, **how: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "portal.embedded", "up"]
        return subprocess.Popen(command, cwd=ROOT, env=self.env, text=True, start_new_session=True, **how)  # type: ignore[call-overload,no-any-return]

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the portal beside the stack, told nothing but the data folder."""
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(
            command, cwd=ROOT, env=self.env, text=True, capture_output=True, timeout=60, check=False
        )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until(self, ready: Callable[[], object], within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not ready():
            assert self.process.poll() is None, f"ended by itself:\n{self.said}"
            assert time.monotonic() < end, f"took too long:\n{self.said}"
            time.sleep(0.05)

    def is_up(self) -> None:
        self.until(lambda: "Berth is up" in self.said)
        self.url = re.search(r"http://[\d.:]+", self.said)[0]  # type: ignore[index]
        self.until(lambda: "  nodes " in self.said)

    def second(self) -> subprocess.CompletedProcess[str]:
        other = self._run(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = other.communicate(timeout=30)
        return subprocess.CompletedProcess(other.args, other.returncode, out, err)

    def children(self) -> dict[str, int]:
        """Process of each child by the name it carries."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        names = {}
        for pid in listed:
            with contextlib.suppress(OSError):  # one that just died has no files any more
                names[Path(os.readlink(f"/proc/{pid}/fd/1")).stem] = int(pid)
        return names

    def processes(self) -> list[str]:
        """Every process of this stack that is left, found by its folder, not by its parent."""
        mark = f"BERTH_DATA={self.data}".encode()
        left = []
        for proc in Path("/proc").glob("[0-9]*"):
            try:
                inside = os.readlink(proc / "cwd").startswith(str(self.data))
                if inside or mark in (proc / "environ").read_bytes().split(b"\0"):
                    left.append((proc / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return left


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder with a space in its name, longer than a socket name may be, that `nobody` can enter."""
    with tempfile.TemporaryDirectory(prefix="berth stack ") as name:
        Path(name).chmod(0o755)
        deep = Path(name) / ("long" * 30)
        deep.mkdir()
        yield deep


@pytest.fixture
def start(room: Path) -> Iterator[Callable[[], Running]]:
    started: list[Running] = []

    def make() -> Running:
        started.append(Running(room / "data"))
        return started[-1]

    yield make
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def page(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return int(answer.status)


def test_one_command_starts_everything_twice_keeps_it_up_and_leaves_nothing(
    start: Callable[[], Running],
) -> None:
    stack = start()
    stack.is_up()

    assert page(stack.url) == 200
    assert "Sign in as" in stack.said
    children = stack.children()
    assert {"postgres", "valkey", "web", "worker", "beat", "gpu-01", "gpu-04"} <= set(children)

    second = stack.second()
    assert second.returncode == 1
    assert f"already running from {stack.data}" in second.stderr
    assert stack.url in second.stderr

    token = stack.manage("enrol_node", "gpu-09")
    assert (token.returncode, len(token.stdout.split())) == (0, 1), token.stderr

    for name in ("web", "valkey", "gpu-01"):
        os.kill(children[name], signal.SIGKILL)
    stack.until(lambda: {"web", "valkey", "gpu-01"} <= set(stack.children()))
    stack.until(lambda: stack.said.count("died (SIGKILL)") == 3)
    assert page(stack.url) == 200

    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(timeout=30) == 0
    assert stack.said.rstrip().endswith("Stopped")
    assert stack.processes() == []

    # The second start finds the data of the first: the two are one test, whichever process runs it.
    stack = start()
    stack.is_up()

    assert "up to date" in stack.said
    assert page(stack.url) == 200

    stack.process.kill()
    stack.process.wait()

    end = time.monotonic() + 60
    while stack.processes() and time.monotonic() < end:
        time.sleep(0.05)
    assert stack.processes() == []
