"""Where the MPS daemon of one user on one device lives, and the one program through which it is controlled.

Commands and formats: NVIDIA, "Multi-Process Service", release 615 (docs/mps.md names the pages).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodeagent.drivers import errors
from nodeagent.drivers.base import Access
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.host.shell import TIMEOUT_S, Done, ProgramError, Shell

PROGRAM: Final = "nvidia-cuda-mps-control"
CLASSIC: Final = 2
NAMED: Final = 3

# How long a daemon may take to answer a question; starting and ending may take the shell's time.
ANSWER_S: Final = 5.0
SLOW: Final = frozenset({"-d", "-q", "quit"})

# A Unix socket's path has 108 bytes with its end (unix(7)); beyond that a daemon starts and is never reached.
SOCKET_ROOM: Final = 107
LONGEST_SOCKET: Final = "p/s/l_01234567/control"

# Folders that root's daemon and the user's server both write into: nobody lists them, and nobody but root replaces
# what is root's there (sticky bit). The kernel follows no planted link in such a folder (fs.protected_symlinks).
COMMON: Final = 0o1733
# Files that root's daemon opens by name: laid there first, as root's.
LOGS: Final = {"control.log": 0o644, "server.log": 0o666, "s/server.log": 0o666}

# A named server that its daemon does not list any more.
GONE: Final = "GONE"

LABEL: Final = "of.json"
_LIMIT = re.compile(r"^(\d+)\s*([KMG])(?:i?B)?$", re.IGNORECASE)


class UserIds(Protocol):
    """A local account of this host."""

    @property
    def uid(self) -> int:
        """Number of the user."""
        ...

    @property
    def gid(self) -> int:
        """Number of its first group."""
        ...


@dataclass(frozen=True, slots=True)
class MpsShare:
    """One share of a device (a GPU or a MIG instance, by UUID) for a user; ``share_milli`` is of its SMs."""

    partition: str
    owner: str
    device: str
    user: str
    share_milli: int
    memory_mib: int

    @property
    def percent(self) -> int:
        """Active thread percentage: whole ones, as documented, and never more than the share."""
        return max(1, self.share_milli // 10)

    @property
    def limit(self) -> str:
        """Pinned memory limit in the words of the program."""
        return f"{self.memory_mib}M"


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The folder of one (device, user). All in it is root's; this user alone passes ``root``, once it is let in."""

    root: Path
    device: str
    user: str
    uid: int
    protocol: int

    @property
    def pipe(self) -> Path:
        """Folder of the daemon's sockets."""
        return self.root / "p"

    @property
    def log(self) -> Path:
        """Folder of its logs."""
        return self.root / "log"

    @property
    def config(self) -> Path:
        """Configuration that a daemon of protocol 3 starts with."""
        return self.root / "mps.toml"

    def env(self) -> dict[str, str]:
        """Return the environment that leads the program to this daemon and to no other."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": self.device,
            "CUDA_MPS_PROTOCOL_VERSION": str(self.protocol),
        }


class MpsProtocol(Protocol):
    """One protocol of the program. Refusals are NvmlLikeError; every call is safe to repeat."""

    def is_up(self, daemon: MpsDaemon) -> bool | None:
        """Say whether the daemon answers; None when that cannot be told."""
        ...

    def start(self, daemon: MpsDaemon) -> None:
        """Run the daemon; whether it came up is asked afterwards."""
        ...

    def settle(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> None:
        """Have a server that keeps the limits of these shares, read back from it."""
        ...

    def is_bound(self, daemon: MpsDaemon, shares: Sequence[MpsShare]) -> bool:
        """Say whether the limits of these shares hold for whoever comes now; changes nothing."""
        ...

    def statuses(self, daemon: MpsDaemon) -> list[str]:
        """Return what servers say of themselves, in capitals."""
        ...

    def clients(self, daemon: MpsDaemon) -> dict[int, str]:
        """Return the clients by pid, with the word under which they are ended."""
        ...

    def ends_with(self, share: MpsShare, where: str) -> bool:
        """Say whether a client found at ``where`` belongs to this share, whatever its pid."""
        ...

    def terminate(self, daemon: MpsDaemon, pid: int, where: str) -> None:
        """End all work that a client has on the device."""
        ...

    def release(self, daemon: MpsDaemon, share: MpsShare, rest: Sequence[MpsShare]) -> None:
        """Take one share's limits away; those of the rest stay."""
        ...

    def quit(self, daemon: MpsDaemon) -> None:
        """Ask the daemon to end."""
        ...

    def access(self, daemon: MpsDaemon, share: MpsShare) -> Access:
        """Return how a program becomes a client with this share's limits."""
        ...


class MpsControlProgram:
    """Runs the program for a daemon."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._newest: int | None = None

    def newest(self) -> int:
        """Return the newest protocol that the installed program speaks. Raises ProgramError where it is missing.

        Its help names servers and namespaces where it knows protocol 3; older ones do not know ``-p``.
        """
        if self._newest is None:
            done = self._shell.run([PROGRAM, "-p", "3", "-h"], env={"CUDA_MPS_PROTOCOL_VERSION": "3"})
            said = f"{done.out} {done.err}".lower()
            self._newest = NAMED if done.is_ok and "namespace" in said and "server" in said else CLASSIC
        return self._newest

    def attempt(self, daemon: MpsDaemon, *words: str, stdin: str = "") -> Done | None:
        """Run it once; None when it did not answer at all."""
        is_long = bool(SLOW & {*words, stdin.strip()})
        wait_s = TIMEOUT_S if is_long else ANSWER_S
        try:
            return self._shell.run([PROGRAM, *words], stdin=stdin, env=daemon.env(), timeout_s=wait_s)
        except ProgramError:
            return None

    def do(self, daemon: MpsDaemon, *words: str, stdin: str = "") -> str:
        """Return what it said. Raises TIMEOUT without an answer, UNKNOWN with its words when it refuses."""
        said = " ".join([*words, stdin.strip()]).strip()
        done = self.attempt(daemon, *words, stdin=stdin)
        if done is None:
            raise NvmlLikeError(errors.TIMEOUT, f"{PROGRAM} did not answer {said!r} for {_whose(daemon)}")
        if not done.is_ok:
            raise NvmlLikeError(
                errors.UNKNOWN, f"{PROGRAM} refused {said!r} for {_whose(daemon)}: {done.said}"
            )
        return done.out.strip()


class MpsDaemons:
    """The daemons below ``run_dir``. Whose they are is written down; whether they run is asked."""

    def __init__(self, run_dir: Path, *, own: Callable[[Path, int, int], None], socket_room: int) -> None:
        # Short names: sockets lie below them.
        self._dir = run_dir / "mps"
        self._own = own
        self._room = socket_room

    def of(self, device: str, user: str) -> MpsDaemon | None:
        """Return a daemon whose folder was made before, None for none."""
        return _read(self._dir / _key(device, user))

    def all(self) -> list[MpsDaemon]:
        """Return every daemon whose folder was made, ordered by device and user."""
        if not self._dir.is_dir():
            return []
        found = [daemon for path in self._dir.iterdir() if (daemon := _read(path)) is not None]
        return sorted(found, key=lambda daemon: (daemon.device, daemon.user))

    def make(self, device: str, user: str, account: UserIds, protocol: int) -> MpsDaemon:
        """Make the folder of a daemon that is about to start, with fresh folders and nobody let in.

        The daemon is root's and opens files by known names: what somebody may have laid there goes first, and
        nobody lays anything there before it runs.
        """
        daemon = MpsDaemon(self._dir / _key(device, user), device, user, account.uid, protocol)
        if len(os.fsencode(daemon.root / LONGEST_SOCKET)) > self._room:
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT,
                f"the path of the run folder is too long for MPS sockets ({self._dir}): give the agent a shorter one",
            )
        try:
            daemon.root.mkdir(parents=True, exist_ok=True)
            self._dir.chmod(0o711)  # users pass through, whatever the agent's umask is
            daemon.root.chmod(0o700)
            _lay_out(daemon)
            said = {"device": device, "user": user, "uid": account.uid, "protocol": protocol}
            write(daemon.root / LABEL, json.dumps(said))
        except PermissionError as no:
            raise NvmlLikeError(
                errors.NO_PERMISSION, f"the MPS folder of {user} cannot be made ({no}): run the agent as root"
            ) from no
        except OSError as no:
            raise NvmlLikeError(errors.UNKNOWN, f"the MPS folder of {user} cannot be made: {no}") from no
        return daemon

    def let_in(self, daemon: MpsDaemon, account: UserIds) -> None:
        """Let the user pass to a daemon that runs; once more changes nothing."""
        try:
            self._own(daemon.root, account.uid, account.gid)
        except OSError as no:
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"{daemon.user} cannot be let in to {daemon.root} ({no}): the run folder must lie on a file system with"
                " access control lists, such as the tmpfs of /run, and the agent must run as root",
            ) from no

    def remove(self, daemon: MpsDaemon) -> None:
        """Remove the folder of a daemon that is gone; its label goes last, so that half of it is still found."""
        for folder in (daemon.pipe, daemon.log):
            shutil.rmtree(folder, ignore_errors=True)
        daemon.config.unlink(missing_ok=True)
        (daemon.root / LABEL).unlink(missing_ok=True)
        shutil.rmtree(daemon.root, ignore_errors=True)


def _lay_out(daemon: MpsDaemon) -> None:
    """Lay out empty folders and logs of the agent's own; rmtree follows no links."""
    for folder in (daemon.pipe, daemon.log):
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
    for folder in (daemon.pipe, daemon.log, daemon.log / "s"):
        folder.mkdir()
        folder.chmod(COMMON)
    for name, mode in LOGS.items():
        (daemon.log / name).touch(exist_ok=False)
        (daemon.log / name).chmod(mode)


def let_pass(folder: Path, uid: int, gid: int) -> None:
    """Let one account pass a folder that stays root's, by an access control list (acl(5)).

    Neither owner nor group would do: an owner changes its modes, and a group may have other members. The kernel
    takes the list as version 2, then tag, permissions and number of each entry (linux/posix_acl_xattr.h).
    """
    no_id, passes = 0xFFFFFFFF, 1
    entries = (
        (0x01, 7, no_id),
        (0x02, passes, uid),
        (0x04, 0, no_id),
        (0x10, passes, no_id),
        (0x20, 0, no_id),
    )
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, "system.posix_acl_access", packed)


def write(path: Path, text: str) -> None:
    """Write a small file at once or not at all; only its owner may read it."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.chmod(0o600)
    part.replace(path)


def is_serving(status: str) -> bool:
    """Say whether a server with this status takes clients: "ACTIVE" by protocol 2, "Ready" by protocol 3."""
    return status in ("ACTIVE", "READY")


def keeps_memory(reply: str, wanted_mib: int) -> bool:
    """Say whether a reply shows this limit.

    Drivers show limits of a GiB and more in whole GiB, rounded down (seen with 595.91: 1044M reads 1G).
    """
    found = _LIMIT.match(reply.strip())
    if found is None:
        return False
    number, unit = int(found[1]), found[2].upper()
    if unit == "G":
        return number == wanted_mib // 1024
    return number == (wanted_mib if unit == "M" else wanted_mib * 1024)


def keeps_percent(reply: str, wanted: int) -> bool:
    """Say whether a reply ("25.0") shows this percentage."""
    try:
        return abs(float(reply.strip()) - wanted) < 0.5
    except ValueError:
        return False


def numbers(text: str) -> list[int]:
    """Return the numbers of a reply that is a list of pids."""
    return [int(word) for word in text.split() if word.isdigit()]


def _whose(daemon: MpsDaemon) -> str:
    return f"{daemon.user} on {daemon.device}"


def _key(device: str, user: str) -> str:
    return hashlib.sha256(f"{device}\n{user}".encode()).hexdigest()[:8]


def _read(root: Path) -> MpsDaemon | None:
    try:
        said = json.loads((root / LABEL).read_text())
        return MpsDaemon(
            root, str(said["device"]), str(said["user"]), int(said["uid"]), int(said["protocol"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        # Without its label no daemon was started there: the label is written first.
        return None
