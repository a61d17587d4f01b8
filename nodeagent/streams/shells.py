"""A login shell on a terminal of its own, as a lease's holder, inside the lease."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import termios
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.host.terminal import on_terminal
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.workloads.entry import EntryRefusedError, HolderCommand, LeaseEntry, pids, start

TERM: Final = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


@dataclass(frozen=True, slots=True)
class LeaseShell:
    """A shell that was started: its process, first of its session, and the other end of its terminal."""

    process: subprocess.Popen[bytes]
    terminal: int

    def resize(self, rows: int, columns: int) -> None:
        """Tell the programs how large the window is."""
        with contextlib.suppress(OSError):
            termios.tcsetwinsize(self.terminal, (rows, columns))

    def hang_up(self, *, kill: bool = False) -> None:
        """Tell the session that nobody is there any more, or end what still runs in it. Safe to repeat."""
        for pid in session_of(self.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGHUP)


def start_shell(entry: LeaseEntry, record: LeaseRecord, rows: int, columns: int) -> LeaseShell:
    """Start a shell in a ready lease; raises EntryRefusedError."""
    command = entry.command(record)
    return spawn(replace(command, env={**command.env, **TERM}), rows, columns)


def spawn(command: HolderCommand, rows: int, columns: int) -> LeaseShell:
    """Start a program as the first of a session on a new terminal; raises EntryRefusedError."""
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (rows, columns))
        name = os.ttyname(theirs)
        if command.holder is not None:
            os.fchown(theirs, command.holder.uid, command.holder.gid)
            os.fchmod(theirs, 0o600)
        words = on_terminal(name, command.words)
        process = start(replace(command, words=words), stdin=theirs, stdout=theirs, stderr=theirs)
        os.set_blocking(ours, False)
    except OSError as no:
        os.close(ours)
        raise EntryRefusedError("no_shell", f"a shell cannot be started on this node: {no}") from no
    except EntryRefusedError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return LeaseShell(process, ours)


def session_of(leader: int) -> list[int]:
    """Return the processes of a session, its leader included while it lives."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found
