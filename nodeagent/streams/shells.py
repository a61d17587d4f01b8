"""A login shell on a terminal of its own, as a lease's holder, inside the lease.

On hosts with units the shell gets in by ``berth-agent enter``, as from a login: one way in, one set of rules. The
agent's own unit hides homes, so it goes by the mount namespace of the lease's first process. Where holders are only
played there is no account and no unit: a shell is the agent's own account there, never root, in a folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodeagent.host.accounts import Account, account_of
from nodeagent.protocol.variables import allowed
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.reconcile.units import grant_of
from nodeagent.runtimes.base import Key
from nodeagent.runtimes.names import stem_of

TERM: Final = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
NOBODY: Final = "nobody"
GENERATION: Final = "BERTH_GENERATION"
# Who opens a terminal first, without having one, has it as its own from then on: job control and Ctrl-C work.
_TAKE_TERMINAL: Final = 'exec 0<>"$1" 1>&0 2>&0 && shift && exec "$@"'
_HOME_AND_SHELL: Final = 'cd 2>/dev/null; exec "$SHELL" -l'


class ShellRefusedError(Exception):
    """No shell is started; ``code`` is stable, the sentence says why and what to do."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


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


class ShellHost(Protocol):
    """How shells are started on this host; calls may take some milliseconds."""

    def start(self, record: LeaseRecord, rows: int, columns: int) -> LeaseShell:
        """Start a shell in a ready lease; raises ShellRefusedError."""
        ...

    def clear(self, key: Key) -> None:
        """End what is left of a lease's shells when it is over. Safe to repeat."""
        ...

    def close(self) -> None:
        """Leave nothing behind when the agent stops. Safe to repeat."""
        ...


class UnitShells:
    """Shells in units: ``berth-agent enter`` on a terminal."""

    def __init__(
        self, main_pid: Callable[[Key], int], account: Callable[[str], Account] = account_of
    ) -> None:
        """Take how to find the first process of a lease's unit (0: none)."""
        self._main_pid = main_pid
        self._account = account

    def start(self, record: LeaseRecord, rows: int, columns: int) -> LeaseShell:
        """Start the holder's login shell inside the unit."""
        try:
            holder = self._account(record.user)
        except LookupError as no:
            raise ShellRefusedError("no_account", str(no.args[0] if no.args else no)) from no
        pid = self._main_pid(record.key)
        if not pid:
            raise ShellRefusedError(
                "not_open", "the lease is just being opened or closed; try again in a moment"
            )
        return spawn(
            self.words(record.lease, pid), {**TERM, "PATH": SAFE_PATH}, "/", rows, columns, owner=holder
        )

    def words(self, lease: str, pid: int) -> list[str]:
        """Return the command: into the lease's view of the host's files, then into the lease by ``enter``."""
        enter = [
            sys.executable,
            "-I",
            "-m",
            "nodeagent",
            "enter",
            lease,
            "--",
            "/bin/sh",
            "-c",
            _HOME_AND_SHELL,
        ]
        return ["nsenter", "--target", str(pid), "--mount", "--", *enter]

    def clear(self, key: Key) -> None:
        """Do nothing: what is in a unit ends with it."""

    def close(self) -> None:
        """Do nothing: there is nothing of ours."""


class PlayedShells:
    """Shells where holders are played, for demos: a folder per lease, the agent's own account, ``nobody`` for root."""

    def __init__(self, state: Path, notice: Callable[[LeaseRecord], Path], clock: Callable[[], int]) -> None:
        """Keep folders below the state folder, for root in one of the system's that ``nobody`` can reach."""
        self._account = _nobody() if os.geteuid() == 0 else None
        self._folder = state / "shells" if self._account is None else None
        self._notice = notice
        self._clock = clock

    def start(self, record: LeaseRecord, rows: int, columns: int) -> LeaseShell:
        """Start a shell with the lease's variables in the lease's folder."""
        folder = self._made(record.key)
        shell = shutil.which("bash", path=SAFE_PATH) or "/bin/sh"
        user = self._account.name if self._account else pwd.getpwuid(os.geteuid()).pw_name
        own = {"HOME": str(folder), "USER": user, "LOGNAME": user, "SHELL": shell, "PATH": SAFE_PATH}
        grant = grant_of(record, self._clock(), str(self._notice(record)))
        env = allowed({**grant.env, GENERATION: str(record.generation)}) | TERM | own | _language()
        return spawn([shell, "-l"], env, str(folder), rows, columns, account=self._account)

    def clear(self, key: Key) -> None:
        """Kill what carries the lease in its environment, and remove its folder."""
        marks = {f"BERTH_LEASE={key[0]}".encode(), f"{GENERATION}={key[1]}".encode()}
        for pid in marked(marks):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._folder is not None:
            shutil.rmtree(self._folder / stem_of(key), ignore_errors=True)

    def close(self) -> None:
        """Remove a folder that no later agent would find."""
        if self._account is not None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self, key: Key) -> Path:
        """Return the lease's folder, made for the shell's account alone; raises ShellRefusedError."""
        try:
            if self._folder is None:  # a fresh name: nobody can have put a link in its place
                self._folder = Path(tempfile.mkdtemp(prefix="berth-shells-"))
                self._folder.chmod(0o711)
            folder = self._folder / stem_of(key)
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True)
                if self._account is not None:
                    os.chown(folder, self._account.uid, self._account.gid)
        except OSError as no:
            raise ShellRefusedError("no_folder", f"no folder for this lease's shells: {no.strerror}") from no
        return folder


def spawn(
    words: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    rows: int,
    columns: int,
    *,
    account: Account | None = None,
    owner: Account | None = None,
) -> LeaseShell:
    """Start a program as the first of a session on a new terminal; raises ShellRefusedError.

    ``account``: become it before anything runs. ``owner``: whose the terminal is, where that is somebody else still
    (the program becomes them itself).
    """
    holder = account or owner
    ours, theirs = os.openpty()
    try:
        termios.tcsetwinsize(theirs, (rows, columns))
        name = os.ttyname(theirs)
        if holder is not None:
            os.fchown(theirs, holder.uid, holder.gid)
            os.fchmod(theirs, 0o600)
        process = subprocess.Popen(  # noqa: S603 - the holder's own shell, as the holder
            ["/bin/sh", "-c", _TAKE_TERMINAL, "sh", name, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
        )
        os.set_blocking(ours, False)
    except (OSError, subprocess.SubprocessError) as no:
        os.close(ours)
        raise ShellRefusedError("no_shell", f"a shell cannot be started on this node: {no}") from no
    finally:
        os.close(theirs)
    return LeaseShell(process, ours)


def session_of(leader: int) -> list[int]:
    """Return the processes of a session, its leader included while it lives."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def marked(marks: Iterable[bytes]) -> list[int]:
    """Return the processes that were started with all of these in their environment, this one aside."""
    wanted, found = frozenset(marks), []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                found.append(pid)
    return found


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _nobody() -> Account:
    found = pwd.getpwnam(NOBODY)
    return Account(found.pw_uid, found.pw_gid, "/", NOBODY)


def _language() -> dict[str, str]:
    """Return a language in which any text can be shown."""
    return {"LANG": os.environ.get("LANG") or "C.UTF-8"}
