"""``berth-agent enter LEASE``: a shell, or one command, inside a lease.

Run through sudo by the lease's holder. The process is moved into the lease's own cgroup, becomes the holder
again and then executes; so it reaches the lease's devices and no others, shares its limits with everything else in
it, and ends with it. It is moved by AttachProcessesToUnit of systemd (org.freedesktop.systemd1(5)), the call made
for delegated units. A unit of its own would have its own limits: two shells would have twice the memory, and a
limit on device memory, which binds a cgroup, would bind neither.

There is nothing here that a caller may choose but the lease and the command: sudo grants any arguments. Programs
that this runs as root get an environment of their own. What Python itself reads from its environment or from the
caller's folder before the first line of this runs is kept out by sudo (env_reset) and by how the program is named
(nodeagent.commands.install), and can only be kept out there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import Read, read_text
from nodeagent.host.shell import HostShell, ProgramError, Shell
from nodeagent.protocol.variables import GIVEN
from nodeagent.runtimes.base import Key, RuntimeRefusedError
from nodeagent.runtimes.names import unit_of
from nodeagent.runtimes.systemd import SystemdRuntime

FAILED: Final = 1
NOT_FOUND: Final = 127
SAFE_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
KEPT: Final = ("TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "DISPLAY", "SSH_TTY")
MANAGER: Final = (
    "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
)  # fmt: skip


class EnterError(Exception):
    """Nobody is let in; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what a process can do to itself: become somebody for good, and become another program."""

    euid: int
    pid: int
    environ: Mapping[str, str]
    become: Callable[[Account], None]
    execute: Callable[[Sequence[str], Mapping[str, str]], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("lease", help="the lease's id, as its page shows it")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run (your shell)"
    )


def run(options: argparse.Namespace) -> int:
    """Carry the command out; returns only when nobody was let in."""
    caller = Caller(os.geteuid(), os.getpid(), os.environ, become, _execute)
    command = list(options.command)
    if command[:1] == ["--"]:
        command.pop(0)
    shell = HostShell({"PATH": SAFE_PATH})
    try:
        enter(options.lease, command, caller=caller, runtime=SystemdRuntime(shell), shell=shell)
    except EnterError as no:
        return _say(FAILED, str(no))
    except FileNotFoundError:
        return _say(NOT_FOUND, f"{command[0] if command else 'your shell'} was not found inside the lease")
    except OSError as no:
        return _say(FAILED, f"{command[0] if command else 'your shell'} cannot be run: {no.strerror}")
    return FAILED


def enter(
    lease: str,
    command: Sequence[str],
    *,
    caller: Caller,
    runtime: SystemdRuntime,
    shell: Shell,
    read: Read = read_text,
    account: Callable[[str], Account] = account_of,
) -> None:
    """Go into a lease and execute a command there, the holder's shell when none is given; raises EnterError."""
    asker = asker_of(caller)
    try:
        if runtime.why_not():
            raise EnterError(f"leases have no units on this host: {runtime.why_not()}")
        key, user, main_pid = _open_lease(lease, runtime)
        holder = account(user)
        if asker not in (0, holder.uid):
            raise EnterError(f"lease {lease} is {user}'s, not yours; only its holder may enter it")
        env = session_env(_environ(read, main_pid, lease), holder, caller.environ)
        if asker == 0:
            env |= given_env(caller.environ)
        _move(caller.pid, key, shell)
        if runtime.lease_of(caller.pid) != key:
            raise EnterError(f"this process could not be moved into lease {lease}; tell your operator")
    except LookupError as no:
        raise EnterError(str(no.args[0] if no.args else no)) from no
    except (RuntimeRefusedError, ProgramError) as no:
        raise EnterError(getattr(no, "detail", str(no))) from no
    caller.become(holder)
    caller.execute(list(command) or [holder.shell], env)


def asker_of(caller: Caller) -> int:
    """Return the uid of who really asks: sudo's caller, or root itself; raises EnterError without root's rights."""
    if caller.euid != 0:
        raise EnterError("moving into a lease takes root's rights: sudo berth-agent enter LEASE")
    uid = caller.environ.get("SUDO_UID", "0")
    if not (uid.isascii() and uid.isdigit()):
        raise EnterError(f"sudo names its caller as {uid!r}, which is no uid; start this from a plain login")
    return int(uid)


def session_env(holders: Mapping[str, str], holder: Account, callers: Mapping[str, str]) -> dict[str, str]:
    """Return the environment inside: the lease's variables, the holder's own, and the caller's terminal."""
    kept = {name: value for name, value in callers.items() if name in KEPT or name.startswith("LC_")}
    own = {"HOME": holder.home, "USER": holder.name, "LOGNAME": holder.name, "SHELL": holder.shell}
    path = holders.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    return kept | dict(holders) | own | {"PATH": path}


def given_env(callers: Mapping[str, str]) -> dict[str, str]:
    """Return what root gives the command on top of the lease's variables; sudo keeps nobody else's."""
    return {name.removeprefix(GIVEN): value for name, value in callers.items() if name.startswith(GIVEN)}


def _open_lease(lease: str, runtime: SystemdRuntime) -> tuple[Key, str, int]:
    """Return the newest open generation of a lease, its account and the pid of its first process."""
    for key in sorted((one for one in runtime.known() if one[0] == lease), reverse=True):
        shown = runtime.show(key)
        if shown.state == "active" and shown.words.get("User"):
            return key, shown.words["User"], shown.main_pid
        if shown.state == "deactivating":
            raise EnterError(f"lease {lease} is ending; nobody is let in any more")
    raise EnterError(
        f"lease {lease} is not open on this host; its page in the portal says where it runs and since when"
    )


def _environ(read: Read, pid: int, lease: str) -> dict[str, str]:
    """Return the variables that the lease's first process was given; they name its devices."""
    try:
        text = read(f"/proc/{pid}/environ") if pid else ""
    except OSError:
        text = ""
    if not text:
        raise EnterError(f"lease {lease} is just being opened or closed; try again in a moment")
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def _move(pid: int, key: Key, shell: Shell) -> None:
    words = ["busctl", "call", *MANAGER, "AttachProcessesToUnit", "ssau", unit_of(key), "", "1", str(pid)]
    done = shell.run(words)
    if not done.is_ok:
        raise EnterError(f"lease {key[0]} could not be entered: {done.said}")


def become(account: Account) -> None:
    """Give up root's rights for good, groups first; then stand where the holder may stand."""
    os.initgroups(account.name, account.gid)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    for folder in (".", account.home, "/"):
        with contextlib.suppress(OSError):
            os.chdir(folder)
            os.getcwd()
            return


def _execute(words: Sequence[str], env: Mapping[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(words[0], list(words), dict(env))  # noqa: S606 - the holder's own command, as the holder


def _say(code: int, sentence: str) -> int:
    print(f"berth-agent: {sentence}", file=sys.stderr)  # noqa: T201 - the answer to whoever asked
    return code
