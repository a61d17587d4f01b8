"""How a program gets into a lease: as its holder, inside it, with its variables. Shells, apps and jobs all go this way.

On hosts with units that is ``berth-agent enter``, as from a login: one way in, one set of rules. The agent's own unit
hides homes, so it goes by the namespaces of the lease's first process. Where holders are only played there is no
account and no unit: programs run as the agent's own account there, never as root, in a folder of the lease.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.removal import remove_tree
from nodeagent.protocol.variables import GIVEN, allowed
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.reconcile.units import grant_of
from nodeagent.runtimes.base import Key, RuntimeRefusedError
from nodeagent.runtimes.host_folders import HostFolders
from nodeagent.runtimes.names import stem_of

log = logging.getLogger(__name__)

SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
NOBODY: Final = "nobody"
GENERATION: Final = "BERTH_GENERATION"
SSH_SESSION: Final = "nodeagent.streams.ssh_session"
RUN_FOLDERS: Final = "workloads"
END_ROUNDS: Final = 10
# Where holders are played no control group bounds what they start: all leases together get so many more processes and
# threads than their account has when the agent starts. What is beyond is refused to them, and to nobody else.
MOST_PLAYED: Final = 4096
END_PAUSE_S: Final = 0.01
ENVIRONMENT_BYTES: Final = 128 * 1024
_AT_HOME: Final = 'cd 2>/dev/null; exec "$@"'
_LOGIN_SHELL: Final = 'cd 2>/dev/null; exec "$SHELL" -l'


class EntryRefusedError(Exception):
    """Nothing is started; ``code`` is stable, the sentence says why and what to do."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class HolderCommand:
    """What to start so that it runs in a lease as its holder, from their home folder.

    ``account``: become it before anything runs; None where the words do that themselves. ``holder`` owns what is
    made for the program, such as its terminal; None is the agent's own account. ``unit`` is one that it starts, which
    does not end with it.
    """

    words: Sequence[str]
    env: Mapping[str, str]
    folder: str
    account: Account | None
    holder: Account | None
    unit: str = ""


class LeaseEntry(Protocol):
    """How programs get into leases on this host; calls may take some milliseconds.

    ``outlives_agent``: programs run on when the agent ends; units keep them. ``held`` are leases whose files are
    still being collected: nothing of them is cleared.
    """

    outlives_agent: bool
    held: set[Key]

    def command(
        self, record: LeaseRecord, words: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> HolderCommand:
        """Return what to start for ``words`` in a ready lease, the holder's login shell for none.

        ``env`` comes on top of the lease's variables, and is in no command line. Raises EntryRefusedError.
        """
        ...

    def dialer(self, record: LeaseRecord, descriptor: int) -> HolderCommand:
        """Return what to start to have sockets in a ready lease opened (nodeagent.workloads.dialer).

        Raises EntryRefusedError.
        """
        ...

    def ssh_session(self, record: LeaseRecord) -> HolderCommand:
        """Return what to start to have one SSH connection served in a ready lease (nodeagent.streams.ssh_session).

        Raises EntryRefusedError.
        """
        ...

    def run_folder(self, record: LeaseRecord) -> Path:
        """Return the lease's folder for sockets, 0700 and the holder's, made if need be; raises EntryRefusedError."""
        ...

    def clear(self, key: Key) -> None:
        """End what is left of a lease that is over, and remove its folders. Safe to repeat."""
        ...

    def remove_folders(self, key: Key) -> None:
        """Remove the folders of a lease in which nothing runs. Safe to repeat."""
        ...

    def keep_only(self, key: Key, pid: int) -> bool:
        """End everything in a lease but one process, and what keeps the lease open; says whether that is done.

        False: something does not end, or is started anew as fast. Raises EntryRefusedError where nobody can tell.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind that no later agent would find. Safe to repeat."""
        ...


def start(command: HolderCommand, **streams: object) -> subprocess.Popen[bytes]:
    """Start a command as the first of a session; ``streams`` are Popen's stdin, stdout, stderr and pass_fds.

    Raises EntryRefusedError.
    """
    account = command.account
    try:
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]  # noqa: S603 - the holder's own
            list(command.words),
            env=dict(command.env),
            cwd=command.folder,
            start_new_session=True,
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else [],
            **streams,
        )
    except (OSError, subprocess.SubprocessError) as no:
        raise EntryRefusedError("not_started", f"nothing can be started on this node: {no}") from no


class UnitEntry:
    """Into units, by ``berth-agent enter``."""

    outlives_agent = True

    def __init__(
        self,
        run_dir: Path,
        main_pid: Callable[[Key], int],
        pids: Callable[[Key], list[int]],
        account: Callable[[str], Account] = account_of,
        folders: HostFolders | None = None,
    ) -> None:
        """Take the agent's run folder, and how to find the first process of a lease's unit (0: none), and all."""
        self.held: set[Key] = set()
        self._host_folders = folders or HostFolders()
        self._folders = run_dir / RUN_FOLDERS
        self._main_pid = main_pid
        self._pids = pids
        self._account = account

    def command(
        self, record: LeaseRecord, words: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> HolderCommand:
        """Return how the agent, as root, gets into the lease's view of the host, and from there into the lease."""
        holder = self._holder(record)
        inside = ["/bin/sh", "-c", _AT_HOME, "sh", *words] if words else ["/bin/sh", "-c", _LOGIN_SHELL]
        there = ["nsenter", "--target", str(self._pid(record)), "--mount", "--"]
        enter = [sys.executable, "-I", "-m", "nodeagent", "enter", record.lease, "--"]
        given = {f"{GIVEN}{name}": value for name, value in (env or {}).items()}
        return HolderCommand([*there, *enter, *inside], {"PATH": SAFE_PATH, **given}, "/", None, holder)

    def dialer(self, record: LeaseRecord, descriptor: int) -> HolderCommand:
        """Return ``berth-agent dial``, in the lease's network as well."""
        there = ["nsenter", "--target", str(self._pid(record)), "--mount", "--net", "--"]
        dial = [sys.executable, "-I", "-m", "nodeagent", "dial", record.lease, str(descriptor)]
        return HolderCommand([*there, *dial], {"PATH": SAFE_PATH}, "/", None, self._holder(record))

    def ssh_session(self, record: LeaseRecord) -> HolderCommand:
        """Return the agent's Python inside the lease, as its holder."""
        return self.command(record, [sys.executable, "-I", "-m", SSH_SESSION])

    def run_folder(self, record: LeaseRecord) -> Path:
        """Return the lease's folder below the agent's, which holders can pass."""
        holder = self._holder(record)
        folder = self._folders / stem_of(record.key)
        try:
            self._folders.mkdir(mode=0o711, exist_ok=True)
            _make_for(folder, holder)
        except OSError as no:
            raise EntryRefusedError("no_folder", f"no folder for this lease: {no.strerror}") from no
        return folder

    def clear(self, key: Key) -> None:
        """Remove the lease's folder for sockets; what is in a unit, and its scratch folder, end with that."""
        _remove(self._folders / stem_of(key), key)

    def remove_folders(self, key: Key) -> None:
        """Remove the lease's folder below the agent's, and empty its scratch folder."""
        self.clear(key)
        if self._host_folders.scratch is not None:
            try:
                self._host_folders.scratch.empty(key)
            except OSError as no:
                log.warning("the scratch folder of lease %s could not be emptied: %s", key[0], no)

    def keep_only(self, key: Key, pid: int) -> bool:
        """Kill all of the unit but its first process and this one, and the lease's containers outside of it."""
        try:
            kept = {pid, self._main_pid(key)}
            return end_all(lambda: [one for one in self._pids(key) if one not in kept])
        except RuntimeRefusedError as no:
            raise EntryRefusedError(no.word, no.detail) from no

    def close(self) -> None:
        """Do nothing: what runs in units runs on, and the next agent finds the folders."""

    def _pid(self, record: LeaseRecord) -> int:
        pid = self._main_pid(record.key)
        if not pid:
            raise EntryRefusedError(
                "not_open", "the lease is just being opened or closed; try again in a moment"
            )
        return pid

    def _holder(self, record: LeaseRecord) -> Account:
        try:
            return self._account(record.user)
        except LookupError as no:
            raise EntryRefusedError("no_account", str(no.args[0] if no.args else no)) from no


class PlayedEntry:
    """Where holders are played, for demos: a folder per lease, the agent's own account, ``nobody`` for root."""

    outlives_agent = False

    def __init__(
        self,
        state: Path,
        notice: Callable[[LeaseRecord], Path],
        clock: Callable[[], int],
        most: int = MOST_PLAYED,
        folders: HostFolders | None = None,
    ) -> None:
        """Keep folders below the state folder, for root in one of the system's that ``nobody`` can reach.

        ``most`` is how many processes and threads all leases may have together.
        """
        self.held: set[Key] = set()
        self._account = played_account()
        self._host_folders = folders or HostFolders()
        bound = shutil.which("prlimit", path=SAFE_PATH)
        limit = threads_of(os.geteuid() if self._account is None else self._account.uid) + most
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        if hard != resource.RLIM_INFINITY:  # only root may raise it, and prlimit would then start nothing
            limit = min(limit, hard)
        self._bound = [bound, f"--nproc={limit}:{limit}", "--"] if bound else []
        self._folder = state / "shells" if self._account is None else None
        self._sockets: Path | None = None
        self._making = threading.Lock()
        self._notice = notice
        self._clock = clock

    def command(
        self, record: LeaseRecord, words: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> HolderCommand:
        """Return a command with the lease's variables in the lease's folder."""
        folder = self._made(record.key)
        shell = shutil.which("bash", path=SAFE_PATH) or "/bin/sh"
        user = self._account.name if self._account else pwd.getpwuid(os.geteuid()).pw_name
        own = {"HOME": str(folder), "USER": user, "LOGNAME": user, "SHELL": shell, "PATH": SAFE_PATH}
        try:
            grant = self._host_folders.added(grant_of(record, self._clock(), str(self._notice(record))))
        except RuntimeRefusedError as no:
            raise EntryRefusedError("no_folder", no.detail) from no
        lease = allowed({**grant.env, GENERATION: str(record.generation)})
        return HolderCommand(
            [*self._bound, *(words or [shell, "-l"])],
            {**lease, **own, **_language(), **(env or {})},
            str(folder),
            self._account,
            self._account,
        )

    def dialer(self, record: LeaseRecord, descriptor: int) -> HolderCommand:
        """Return the agent's own Python, which becomes the lease's account: that may not be able to start it."""
        return self._as_account(record, "nodeagent.workloads.dialer", str(descriptor))

    def ssh_session(self, record: LeaseRecord) -> HolderCommand:
        """Return the agent's own Python, which becomes the lease's account, as for sockets."""
        return self._as_account(record, SSH_SESSION)

    def _as_account(self, record: LeaseRecord, module: str, *words: str) -> HolderCommand:
        whom = [] if self._account is None else [str(self._account.uid), str(self._account.gid)]
        python = [*self._bound, sys.executable, "-I", "-m", module, *words, *whom]
        return HolderCommand(python, self.command(record).env, "/", None, self._account)

    def run_folder(self, record: LeaseRecord) -> Path:
        """Return a folder with a short name: that of a socket has at most 107 bytes."""
        try:
            with self._making:  # an app and who opens it come by threads of their own
                if self._sockets is None:  # a fresh name: nobody can have put a link in its place
                    self._sockets = Path(tempfile.mkdtemp(prefix="berth-run-"))
                    self._sockets.chmod(0o711)
            folder = self._sockets / stem_of(record.key)
            _make_for(folder, self._account)
        except OSError as no:
            raise EntryRefusedError("no_folder", f"no folder for this lease: {no.strerror}") from no
        return folder

    def clear(self, key: Key) -> None:
        """Kill what carries the lease in its environment, and remove its folders."""
        if key in self.held:
            return
        marks = _marks(key)
        if not end_all(lambda: marked(marks)):
            log.warning("something of lease %s does not end", key[0])
        self.remove_folders(key)

    def remove_folders(self, key: Key) -> None:
        """Remove the lease's home folder, that of its sockets and its scratch folder."""
        for folder in (self._folder, self._sockets):
            if folder is not None:
                _remove(folder / stem_of(key), key)
        if self._host_folders.scratch is not None:
            self._host_folders.scratch.remove(key)

    def seen_folders(self, record: LeaseRecord) -> dict[str, bool]:
        """Return the lease's scratch folder and its team's data sets, each with whether it is only read."""
        scratch, data = self._host_folders.scratch, self._host_folders.data_of(record.team)
        found = {} if scratch is None else {str(scratch.path_of(record.key)): False}
        return found if data is None else {**found, str(data): True}

    def keep_only(self, key: Key, pid: int) -> bool:
        """Kill what carries the lease in its environment, this one aside."""
        marks = _marks(key)
        return end_all(lambda: [one for one in marked(marks) if one != pid])

    def close(self) -> None:
        """Remove folders that no later agent would find."""
        temporary = [self._sockets, self._folder if self._account is not None else None]
        for folder in temporary:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _made(self, key: Key) -> Path:
        """Return the lease's folder, made for the shell's account alone; raises EntryRefusedError."""
        try:
            with self._making:
                if self._folder is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="berth-shells-"))
                    self._folder.chmod(0o711)
            folder = self._folder / stem_of(key)
            self._folder.mkdir(parents=True, exist_ok=True)
            _make_for(folder, self._account)
        except OSError as no:
            raise EntryRefusedError("no_folder", f"no folder for this lease's shells: {no.strerror}") from no
        return folder


def _remove(folder: Path, key: Key) -> None:
    """Remove a folder of a lease, or say what is left; whoever comes next has another one."""
    left = remove_tree(folder)
    if left is not None:
        log.warning(
            "lease %s left what this agent cannot remove, as a container's root does: %s; remove it as root",
            key[0],
            left,
        )


def _marks(key: Key) -> set[bytes]:
    return {f"BERTH_LEASE={key[0]}".encode(), f"{GENERATION}={key[1]}".encode()}


def end_all(found: Callable[[], list[int]]) -> bool:
    """Kill what is found, and look again a few times; says whether nothing is found any more.

    All of it is stopped first: what starts itself anew as fast as it is killed cannot do so then.
    """
    for _ in range(END_ROUNDS):
        if not (pids := found()):
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        time.sleep(END_PAUSE_S)
    return False


def marked(marks: Iterable[bytes]) -> list[int]:
    """Return the processes that were started with all of these in their environment, this one aside."""
    wanted, found, own = frozenset(marks), [], os.getpid()
    for pid in pids():
        with contextlib.suppress(OSError):
            text = _environment(pid)
            # The words first: taking a text apart costs more than reading it, and few processes are ours.
            is_likely = all(mark in text for mark in wanted)
            if is_likely and pid != own and wanted <= set(text.split(b"\0")):
                found.append(pid)
    return found


def _environment(pid: int) -> bytes:
    """Return a process's environment as it was started; raises OSError.

    By as few calls as will do: every process of the host is looked at whenever a job ends.
    """
    fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    try:
        text = os.read(fd, ENVIRONMENT_BYTES)
        while more := os.read(fd, ENVIRONMENT_BYTES) if len(text) % ENVIRONMENT_BYTES == 0 and text else b"":
            text += more
        return text
    finally:
        os.close(fd)


def threads_of(uid: int) -> int:
    """Return how many threads an account has on this host now, as the kernel counts them against its limit."""
    count = 0
    for pid in pids():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def pids() -> list[int]:
    """Return all processes of this host."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _make_for(folder: Path, account: Account | None) -> None:
    """Make a folder for one account alone. Safe to repeat, by several at once; only the agent can make anything beside
    it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if account is not None and folder.stat().st_uid != account.uid:
        os.chown(folder, account.uid, account.gid)


def played_account() -> Account | None:
    """Return whom played holders' programs run as: ``nobody`` where the agent is root, else the agent (None)."""
    if os.geteuid() != 0:
        return None
    found = pwd.getpwnam(NOBODY)
    return Account(found.pw_uid, found.pw_gid, "/", NOBODY)


def _language() -> dict[str, str]:
    """Return a language in which any text can be shown."""
    return {"LANG": os.environ.get("LANG") or "C.UTF-8"}
