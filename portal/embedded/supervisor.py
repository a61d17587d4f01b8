from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from portal.embedded import screen
from portal.embedded.errors import CannotStart
from portal.embedded.process import Child, Program, cut_when_long, describe_exit, last_lines, rotate, spawn
from portal.embedded.restart import Restarts

LOOK_EVERY_S = 1.0
LOGS_EVERY_S = 60.0
HURRY_WITHIN_S = 0.5
SAME_CTRL_C_S = 1.0
# The last words of a child that keeps dying are the same each time.
QUIET_AFTER = 3


class StopAsked(Exception):
    """Somebody asked us to stop while we were waiting for something."""


@dataclass
class SupervisedProgram:
    """A program that is to stay up, with its present child and the count of its failures."""

    program: Program
    child: Child | None = None
    restarts: Restarts = field(default_factory=Restarts)
    start_at: float = 0.0


class Supervisor:
    """Starts programs, keeps them up, and stops them in reverse order of their group.

    One thread, no connection to anything: its memory is shared by every fork.
    """

    def __init__(self, logs: Path, forget: Callable[[], None]) -> None:
        self._logs = logs
        self._forget = forget
        self._watched: dict[str, SupervisedProgram] = {}
        self._asked = 0
        self._asked_at = 0.0
        self._logs_at = time.monotonic() + LOGS_EVERY_S
        self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _ask(self, _signum: int, _frame: FrameType | None) -> None:
        # One Ctrl-C may come twice, from the terminal and from the program that started us.
        now = time.monotonic()
        if not self._asked or now - self._asked_at > SAME_CTRL_C_S:
            self._asked += 1
            self._asked_at = now

    @property
    def asked_to_stop(self) -> bool:
        """Whether Ctrl-C or a signal has come."""
        return self._asked > 0

    def log_of(self, name: str) -> Path:
        """Where a child writes."""
        return self._logs / f"{name}.log"

    def start(self, program: Program) -> Child:
        """Start a program and keep it up from now on."""
        rotate(self.log_of(program.name))
        watched = self._watched.setdefault(program.name, SupervisedProgram(program))
        watched.child = self._spawn(program)
        return watched.child

    def _spawn(self, program: Program) -> Child:
        return spawn(program, self.log_of(program.name), self._forget_in_child)

    def _forget_in_child(self) -> None:
        for end in self._pipe:
            os.close(end)
        self._forget()

    def run_once(self, program: Program, within_s: float) -> None:
        """Run a program to its end; raise CannotStart with its last words when it fails."""
        rotate(self.log_of(program.name))
        child = self._spawn(program)
        try:
            self.wait_for(lambda: child.poll() is not None, program.name, within_s)
        finally:
            if child.poll() is None:
                child.send(signal.SIGTERM)
                child.wait()
        if child.code:
            self._tell_death(program.name, child.code)
            raise CannotStart(
                "failed", f"`{program.name}` failed; its whole output is in {self.log_of(program.name)}."
            )

    def wait_for(self, ready: Callable[[], bool], what: str, within_s: float) -> None:
        """Return once ready; raise Stopped when asked to stop, CannotStart when it takes too long.

        Children that die meanwhile are started again as always, a few times.
        """
        until = time.monotonic() + within_s
        while not ready():
            if self.asked_to_stop:
                raise StopAsked
            self.look_after()
            watched = self._watched.get(what)
            if time.monotonic() > until or (watched and watched.restarts.failures > 3):
                raise CannotStart("not_ready", f"`{what}` is not ready; see {self.log_of(what)}.")
            self._sleep(0.02)

    def watch(self) -> None:
        """Keep everything up until asked to stop."""
        while not self.asked_to_stop:
            self.look_after()
            self._sleep(LOOK_EVERY_S)

    def look_after(self) -> None:
        """Notice the dead, start those whose time has come, bound the logs. Returns at once."""
        now = time.monotonic()
        for watched in self._watched.values():
            if watched.child and watched.child.poll() is not None:
                self._bury(watched, watched.child, now)
            if watched.child is None and now >= watched.start_at:
                watched.child = self._spawn(watched.program)
        if now >= self._logs_at:
            self._logs_at = now + LOGS_EVERY_S
            for log in self._logs.glob("*.log"):
                cut_when_long(log)

    def _bury(self, watched: SupervisedProgram, child: Child, now: float) -> None:
        child.sweep_group()
        watched.restarts = watched.restarts.after_death(now - child.started)
        watched.child = None
        watched.start_at = now + watched.restarts.delay_s
        name, code = watched.program.name, child.code or 0
        self._tell_death(name, code, quiet=watched.restarts.failures > QUIET_AFTER)
        if code in watched.program.final:
            watched.start_at = float("inf")
            screen.line(name, "is not started again")
        else:
            screen.line(name, f"starts again in {watched.restarts.delay_s:g} s")

    def _tell_death(self, name: str, code: int, *, quiet: bool = False) -> None:
        screen.line(name, f"died ({describe_exit(code)}){'' if quiet else '; its last lines:'}")
        if not quiet:
            screen.quote(last_lines(self.log_of(name)))

    def _sleep(self, seconds: float) -> None:
        """Wait until the time is up or a signal arrives (a dead child, Ctrl-C)."""
        soonest = min((w.start_at for w in self._watched.values() if w.child is None), default=float("inf"))
        seconds = max(0.0, min(seconds, soonest - time.monotonic()))
        readable, _, _ = select.select([self._pipe[0]], [], [], seconds)
        if readable:
            os.read(self._pipe[0], 4096)

    def stop(self, groups: Sequence[Sequence[str]]) -> None:
        """Stop group after group; within a group all at once. A second Ctrl-C shortens the waiting.

        Returns only when every child has ended.
        """
        for group in groups:
            children = [w.child for name in group if (w := self._watched.pop(name, None)) and w.child]
            for child in children:
                if child.poll() is None:
                    child.send(child.program.stop_signal)
            for child in children:
                self._see_off(child)

    def _see_off(self, child: Child) -> None:
        began = time.monotonic()
        while child.poll() is None:
            patience = HURRY_WITHIN_S if self._asked > 1 else child.program.stop_within_s
            if time.monotonic() - began > patience:
                screen.line(child.program.name, "does not stop, is killed")
                child.send(signal.SIGKILL)
                child.wait()
                break
            self._sleep(0.1)
        child.sweep_group()

    @property
    def running(self) -> dict[str, int]:
        """Process id of every child that runs now."""
        return {name: w.child.pid for name, w in self._watched.items() if w.child and w.child.poll() is None}
