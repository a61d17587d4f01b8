"""The whole of Berth as `make up` runs it, on a folder and a port of its own, for a browser to visit."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Set for the tests themselves; the stack must find its own.
NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "PYTEST_VERSION", "DJANGO_SETTINGS_MODULE", "BERTH_SECRET_KEY")
# Silence is shown sooner than in production, so that a test can wait for it.
STALE_AFTER_S = 6
PR_SET_PDEATHSIG = 1


class RunningStack:
    """A supervisor in a process of its own; ``url`` is known once it is up."""

    def __init__(self, data: Path, *, is_demo: bool = True) -> None:
        self.data = data
        self._last_words = "  nodes " if is_demo else "with the code"
        self._said = data.with_name("said")
        env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        env |= {
            "BERTH_DATA": str(data),
            "BERTH_PORT": "18700",
            "BERTH_DEMO": "1" if is_demo else "0",
            "BERTH_NODE_STALE_AFTER_S": str(STALE_AFTER_S),
        }
        with self._said.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "portal.embedded", "up"],
                cwd=ROOT,
                env=env,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A test run that is killed has no time to stop it.
                preexec_fn=partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGINT),
            )
        self.url = ""

    @property
    def said(self) -> str:
        """What the supervisor printed so far."""
        return self._said.read_text()

    def wait_until_up(self, within_s: float = 120) -> None:
        """Return when pages answer and the nodes were started."""
        self.until(lambda: "Berth is up" in self.said and self._last_words in self.said, within_s)
        self.url = re.findall(r"http://[\d.:]+", self.said)[0]

    def until(self, is_true: Callable[[], object], within_s: float = 30) -> None:
        """Wait for something; fail with what the supervisor said."""
        end = time.monotonic() + within_s
        while not is_true():
            assert self._process.poll() is None, f"ended by itself:\n{self.said}"
            assert time.monotonic() < end, f"took too long:\n{self.said}"
            time.sleep(0.05)

    def child(self, name: str) -> int:
        """Process id of a child by its name, such as `web` or `gpu-01`."""
        pid = self._process.pid
        for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(os.readlink(f"/proc/{one}/fd/1")).stem == name:
                return int(one)
        raise LookupError(name)

    def kill(self, name: str) -> None:
        """Let a child die without a word; the supervisor starts it again."""
        os.kill(self.child(name), signal.SIGKILL)

    @contextmanager
    def silenced(self, name: str) -> Iterator[None]:
        """Freeze a child: it is there, its connections too, but nothing is heard from it."""
        pid = self.child(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            # One that is silent for long is ended and started anew by whoever watches over it.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End everything and return when it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
