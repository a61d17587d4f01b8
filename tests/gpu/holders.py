"""A small program on a device: what is listed of it, and which memory it gets, is what the contract asks about."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.proc import below_root
from nodeagent.simulation.machine.world import SimulatedProcess

PROGRAM = Path(__file__).with_name("hold_cuda.py")
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
MIB = 1024 * 1024
# Without persistence mode the driver loads the device anew for the first program.
START_S = 60.0
# All memory of a large device is read back over the bus and looked through.
WHOLE_MEMORY_S = 900.0
# PROC_PID_INIT_INO (Linux, include/linux/proc_ns.h): the namespace whose pids NVML tells.
HOST_PIDS = "pid:[4026531836]"
# What the program's own context takes, beside what it is told to: read on an H200 (tests/data/devices).
CONTEXT_MIB = 518


class NoHolderError(Exception):
    """No program can be started on the device here; the sentence says why."""


class Holder(Protocol):
    """A program that holds a device."""

    @property
    def pid(self) -> int:
        """Return its pid."""
        ...

    def take(self, mib: int) -> int:
        """Let it allocate; returns CUDA's code, 0 for success and 2 for no memory."""
        ...

    def fill(self, word: int) -> tuple[int, int]:
        """Let it take all memory there is and write a word of 32 bits everywhere; returns MiB and words."""
        ...

    def find(self, word: int) -> tuple[int, int]:
        """Let it take all memory there is as it is; returns MiB, and how often the word stands there."""
        ...


class _Real:
    """The program as a child of this one."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self.pid = child.pid

    def take(self, mib: int) -> int:
        """Let it allocate."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"take {mib}\n")
        self._child.stdin.flush()
        return int(self.answer())

    def fill(self, word: int) -> tuple[int, int]:
        """Let it write everywhere."""
        return self._asked(f"fill {word}")

    def find(self, word: int) -> tuple[int, int]:
        """Let it look everywhere."""
        return self._asked(f"find {word}")

    def _asked(self, line: str) -> tuple[int, int]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()
        said = self.answer(WHOLE_MEMORY_S).split()
        if len(said) != 2:
            raise NoHolderError("the program on the device ended while it had the whole memory")
        return int(said[0]), int(said[1])

    def answer(self, within_s: float = START_S) -> str:
        """Return its next line; raises NoHolderError where it says nothing in time."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], within_s)[0]:
            raise NoHolderError(f"the program on the device did not answer for {within_s:.0f} s")
        return self._child.stdout.readline().strip()


@contextmanager
def real_holder(uuid: str, cgroup: str = "") -> Iterator[Holder]:
    """Run a program that holds a device, in a cgroup where one is named; raises NoHolderError with the reason.

    Past any MPS daemon of the host, as its pipe folder does not exist. Afterwards the program has ended.
    """
    if os.readlink("/proc/self/ns/pid") != HOST_PIDS:
        raise NoHolderError(
            "the driver lists pids of the host and this is a container with its own; run it on the host"
        )
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    words = [sys.executable, str(PROGRAM), *([cgroup] if cgroup else [])]
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        text=True,
        bufsize=1,
    )
    try:
        holder = _Real(child)
        said = holder.answer()
        if said != "ready":
            raise NoHolderError(said or "the program on the device ended before it could hold it")
        yield holder
    finally:
        child.kill()
        child.communicate()


class SimulatedHolder:
    """A process of the simulated world, which gets memory up to its cgroup's limit and the device's.

    ``left`` is what stays in the memory of a device whose driver does not clear it; None: it does.
    """

    def __init__(
        self, host: SimulatedHost, process: SimulatedProcess, left: dict[int, int] | None = None
    ) -> None:
        self._host, self._process, self._left = host, process, left
        self.pid = process.pid

    def fill(self, word: int) -> tuple[int, int]:
        """Let it write everywhere."""
        mib = self._host.device(self._process.gpu).memory_mib
        if self._left is not None:
            self._left[word] = mib * MIB // 4
        return mib, mib * MIB // 4

    def find(self, word: int) -> tuple[int, int]:
        """Let it look everywhere."""
        return self._host.device(self._process.gpu).memory_mib, (self._left or {}).get(word, 0)

    def take(self, mib: int) -> int:
        """Let it allocate."""
        device = self._host.device(self._process.gpu)
        limit = device.limits.get(below_root(self._process.cgroup), (0, device.memory_mib * MIB))[1] // MIB
        if self._process.memory_mib + mib > min(limit, device.memory_mib):
            return OUT_OF_MEMORY
        self._process.memory_mib += mib
        return 0


@contextmanager
def simulated_holder(
    host: SimulatedHost, uuid: str, cgroup: str = "", left: dict[int, int] | None = None
) -> Iterator[Holder]:
    """Let a process of the simulated world hold a device."""
    process = host.world.spawn(
        below_root(cgroup) or "/user.slice", gpu=uuid, name="hold", memory_mib=CONTEXT_MIB
    )
    try:
        yield SimulatedHolder(host, process, left)
    finally:
        host.world.signal(process.pid, kill=True)
