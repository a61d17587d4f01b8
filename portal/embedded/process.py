from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.places import SystemAccount, become

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
LOG_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Program:
    """One child: what it runs and how it is asked to stop.

    ``run`` is called in a fork of the supervisor and either replaces the process or returns an exit
    status. ``orphan_signal`` is what the kernel sends when the supervisor itself is killed. An exit status
    in ``final`` means that starting it again cannot help.
    """

    name: str
    run: Callable[[], int | None]
    stop_signal: int = signal.SIGTERM
    stop_within_s: float = 10.0
    orphan_signal: int = signal.SIGKILL
    final: tuple[int, ...] = ()
    account: SystemAccount | None = None
    folder: Path | None = None


@dataclass
class Child:
    """A program that was started. ``code`` is None while it runs, negative after a signal."""

    program: Program
    pid: int
    started: float
    code: int | None = None

    def poll(self) -> int | None:
        """Exit status, or None while the child runs."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self) -> int:
        """Block until the child has ended."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def send(self, signum: int) -> None:
        """Signal the child alone; one that is already gone is no error."""
        if self.code is None:
            os.kill(self.pid, signum)

    def sweep_group(self) -> None:
        """Kill what the child left behind in its session, such as the pool of a worker that crashed."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def spawn(program: Program, log: Path, forget: Callable[[], None]) -> Child:
    """Start the program in its own session with its output in ``log``.

    Forked rather than executed: the supervisor has Django loaded, so a child starts in milliseconds and
    shares those pages. Needs a supervisor without threads. ``forget`` drops what a child must not keep.
    """
    _flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(program, log, forget, parent)
    return Child(program, pid, time.monotonic())


def _child(program: Program, log: Path, forget: Callable[[], None], parent: int) -> None:
    status = 1
    try:
        os.setsid()
        _take_name(f"berth-{program.name}")
        _reset_signals()
        forget()
        _redirect(log)
        if program.folder:
            os.chdir(program.folder)
        if program.account:
            become(program.account)
        # After the change of user: the kernel clears the request when the user changes.
        die_with_parent(program.orphan_signal, parent)
        status = program.run() or 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        # Not sys.exit: the supervisor's own clean-up must not run in a child.
        os._exit(status)


def _flush() -> None:
    """Write out what is buffered, or lose it where nobody reads any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def die_with_parent(signum: int, parent: int) -> None:
    """Ask the kernel for a signal when the parent dies, however it dies. Linux only; elsewhere nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _take_name(name: str) -> None:
    """Show the child under its own name in `top`; forks of one program look alike otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


def _redirect(log: Path) -> None:
    """Send output to the log. Appending, so that the file can be cut while the child writes."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(nothing)
    os.close(out)
    sys.stdout = os.fdopen(1, "w", 1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False)


def rotate(log: Path) -> None:
    """Keep the log of the run before as ``<name>.log.1`` and begin an empty one."""
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))


def cut_when_long(log: Path) -> None:
    """Bound a log that a child still writes: its content moves to ``.1`` and the file starts again."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.with_name(log.name + ".1").write_bytes(log.read_bytes())
        os.truncate(log, 0)


def last_lines(log: Path, count: int = 8) -> list[str]:
    """The end of a log, for the terminal."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


def describe_exit(code: int) -> str:
    """`exit status 1` or `SIGKILL`, as a person would say it."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
