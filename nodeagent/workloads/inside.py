"""The way from a lease into the container that runs in it, for shells, apps, SSH and sockets, as the same holder.

``podman exec`` leaves programs behind when whoever started them is gone. Here they are children of whoever came in: a
terminal hangs up on them, an end of the agent's ends them. They get the container's namespaces and variables, and no
capabilities, as all in it (nodeagent.containers.podman).

Runs as the holder inside the lease; where holders are played by root, as root, and becomes the container's account
before anything of the image is run. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final

FOUND_WITHIN_S: Final = 20
FAILED: Final = 125
NOT_FOUND, NOT_RUNNABLE = 127, 126
# The first changes the rights by which the others are entered; the folders come last, as their files are in /proc.
NAMESPACES: Final = ("user", "ipc", "uts", "net", "pid", "mnt")
# Of whoever came in; all else is the container's.
KEPT: Final = ("TERM", "COLORTERM", "LANG")
# Where an app's start looks for programs behind the login shell's own PATH (nodeagent.streams.apps).
PATH_BEHIND: Final = "BERTH_APP_PATH"
_PR_SET_PDEATHSIG: Final = 1
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_MOST_CAPABILITIES: Final = 64
_libc = ctypes.CDLL(None, use_errno=True)


class JoinError(Exception):
    """Nobody was let in; the text is a sentence for people."""


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """Which container, and as whom. ``inspect`` prints the number of its first process on this host; ``engine_env`` are
    Podman's own variables; ``uid`` and ``gid`` are None where whoever comes in is the holder already. ``keeps`` names
    variables that are taken along.
    """

    inspect: Sequence[str]
    engine_env: Mapping[str, str]
    home: str
    uid: int | None = None
    gid: int | None = None
    keeps: Sequence[str] = field(default=())

    def text(self) -> str:
        """Return it as one word of a command line; nothing in it is secret."""
        return json.dumps(asdict(self))


def place_of(text: str) -> ContainerPlace:
    """Return what ``ContainerPlace.text`` was made of."""
    return ContainerPlace(**json.loads(text))


def join(place: ContainerPlace) -> dict[str, str]:
    """Go on inside the container, in a new process; returns the variables to use there.

    The process that called waits for the new one, ends as that does, and hands signals on: it never returns. One
    thread. Raises JoinError where there is nothing to join.
    """
    pid = _first_process(place)
    try:
        env = _environ(pid)
        handles = _open_namespaces(pid)
    except OSError as no:
        raise JoinError(f"the container of this lease is just being started or ended ({no.strerror})") from no
    kept = {name: os.environ[name] for name in (*KEPT, *place.keeps) if name in os.environ}
    for name, handle in handles:
        if _libc.setns(handle, 0):
            raise JoinError(f"the container's {name} namespace cannot be entered: {_why()}")
        os.close(handle)
    child = os.fork()  # processes have their numbers in the container only from the next one on
    if child:
        _wait_for(child)
    _give_up(place)
    for folder in (place.home, "/"):
        with suppress(OSError):
            os.chdir(folder)
            break
    path = env.get("PATH", os.defpath)
    shell = shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"
    # A login shell may set PATH anew, without what the image brings: apps look there as well.
    return {**env, "SHELL": shell, **kept, PATH_BEHIND: path}


def _first_process(place: ContainerPlace) -> int:
    try:
        said = subprocess.run(  # noqa: S603 - Podman, as the agent found it
            list(place.inspect),
            env=dict(place.engine_env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FOUND_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as no:
        raise JoinError(f"Podman does not say where the container of this lease is: {no}") from no
    word = said.stdout.strip()
    if said.returncode or not word.isdecimal() or int(word) < 1:
        raise JoinError("the container of this lease is not running; try again once its job has begun")
    return int(word)


def _environ(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = os.fsdecode(file.read()).split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)


def _open_namespaces(pid: int) -> list[tuple[str, int]]:
    """Open the container's namespaces, as far as they are not this process's own."""
    found = []
    for name in NAMESPACES:
        theirs, ours = f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}"
        if os.readlink(theirs) != os.readlink(ours):
            found.append((name, os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)))
    return found


def _give_up(place: ContainerPlace) -> None:
    """Become the container's account where that is another one, and give up every right for good."""
    for capability in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
            break  # beyond the last that this kernel knows, or not allowed to: then there are none
    if place.uid is not None and place.gid is not None:
        os.setgroups([])
        os.setresgid(place.gid, place.gid, place.gid)
        os.setresuid(place.uid, place.uid, place.uid)
    _drop_capabilities()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise JoinError(f"rights cannot be given up: {_why()}")
    # After the account: becoming another one forgets it.
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _drop_capabilities() -> None:
    """Have none from here on: in a user namespace of one's own one would have all until the next program."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version of capset, this process
    if _libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise JoinError(f"capabilities cannot be given up: {_why()}")


def _wait_for(child: int) -> None:
    """End as the child does. What a terminal sends reaches the child by itself; the rest is handed on."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _take_terminal() -> None:
    """Be in front of one's terminal: the process that waits outside has no number here, which shells stumble over."""
    if not os.isatty(0):
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with suppress(OSError):
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, before)


def _why() -> str:
    return os.strerror(ctypes.get_errno())


def main(words: Sequence[str]) -> int:
    """Run a command in a container: ``PLACE WORD…``, or a shell for no words. Returns only where that fails."""
    place, command = place_of(words[0]), list(words[1:])
    try:
        env = join(place)
    except JoinError as no:
        return _say(FAILED, str(no))
    command = command or [env["SHELL"]]
    _take_terminal()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and programs would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - the holder's own command, as the holder
    except FileNotFoundError:
        return _say(NOT_FOUND, f"{command[0]} was not found in this image")
    except OSError as no:
        return _say(NOT_RUNNABLE, f"{command[0]} cannot be run in this image: {no.strerror}")


def _say(code: int, sentence: str) -> int:
    sys.stderr.write(f"berth: {sentence}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
