from __future__ import annotations

import hashlib
import os
import pwd
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.errors import CannotStart

CHECKOUT = Path(__file__).resolve().parents[2]
# Linux allows 107 bytes in the name of a Unix socket, macOS 103: stay below both.
LONGEST_SOCKET = 103
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
POSTGRES_SOCKET = ".s.PGSQL.5432"
# Where PostgreSQL's data goes when root's checkout lies in a folder that no other account can enter.
OPEN_FOLDERS = (Path("/var/lib"), Path("/var/tmp"))


@dataclass(frozen=True)
class SystemAccount:
    """The system account that PostgreSQL runs as: PostgreSQL refuses to run as root."""

    name: str
    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether a child needs no change of user."""
        return self.uid == os.geteuid()


@dataclass(frozen=True)
class StackPaths:
    """Every path the stack uses. ``sockets`` is short whatever the length of ``data``."""

    data: Path
    postgres: Path
    sockets: Path

    @property
    def cluster(self) -> Path:
        """PostgreSQL's own folder."""
        return self.postgres / "cluster"

    @property
    def postgres_sockets(self) -> Path:
        """The folder that holds PostgreSQL's socket; it belongs to PostgreSQL's account."""
        return self.sockets / "pg"

    @property
    def valkey_socket(self) -> Path:
        """Valkey's only address."""
        return self.sockets / "valkey.sock"

    @property
    def logs(self) -> Path:
        """One file per child."""
        return self.data / "logs"

    @property
    def enrolment(self) -> Path:
        """One-time tokens for the nodes of the demo fleet."""
        return self.data / "enrol"

    @property
    def agents(self) -> Path:
        """State of the demo nodes: key and journal of each."""
        return self.data / "agents"

    @property
    def secret_key(self) -> Path:
        """The portal's secret key, made once."""
        return self.data / "secret_key"

    def database_url(self, name: str = "berth") -> str:
        """Address of a database behind PostgreSQL's socket, as Django and libpq both read it."""
        return f"postgresql://berth@/{name}?host={self.postgres_sockets}"

    def redis_url(self, number: int = 0) -> str:
        """Address of one Valkey database."""
        return f"unix://{self.valkey_socket}?db={number}"


def engine_account() -> SystemAccount:
    """Account for PostgreSQL: our own, or `nobody` when we are root."""
    if os.geteuid() != 0:
        return SystemAccount(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid())
    for name in ("nobody", "postgres"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemAccount(name, entry.pw_uid, entry.pw_gid)
    raise CannotStart(
        "no_engine_account",
        "PostgreSQL does not run as root and this system has no user `nobody`: "
        "start as an ordinary user, or set DATABASE_URL.",
    )


def become(account: SystemAccount) -> None:
    """Give up root for good. Only ever called in a child."""
    if not account.is_ours:
        os.setgroups([])
        os.setgid(account.gid)
        os.setuid(account.uid)


def can_reach(account: SystemAccount, path: Path, *, mode: int = os.X_OK) -> bool:
    """Whether the account may really use the path: asked as that account, so every rule counts."""
    if account.is_ours:
        return os.access(path, mode)
    pid = os.fork()
    if pid == 0:
        answer = 1
        try:
            become(account)
            answer = 0 if os.access(path, mode) else 1
        finally:
            os._exit(answer)
    return os.waitpid(pid, 0)[1] == 0


def open_folder(data: Path, account: SystemAccount) -> Path:
    """Return a folder that the account can pass, for what it runs: the data folder, or one of the system's."""
    data = Path(os.path.realpath(data.expanduser()))
    _make_data_folder(data, account)
    if can_reach(account, data):
        return data
    for room in OPEN_FOLDERS:
        if room.is_dir() and os.access(room, os.W_OK) and can_reach(account, room):
            return room / f"{socket_folder(data, Path('/tmp')).name}-apps"
    raise CannotStart(
        "data_folder", f"The user {account.name} cannot enter {data}: set BERTH_DATA to another folder."
    )


def lay_out(data: Path, account: SystemAccount, *, tmp: Path | None = None) -> StackPaths:
    """Create the folders and return them; permissions of folders that exist are left as they are."""
    data = Path(os.path.realpath(data.expanduser()))
    _make_data_folder(data, account)
    sockets = socket_folder(data, tmp or Path(tempfile.gettempdir()))
    places = StackPaths(data=data, postgres=_postgres_folder(data, account), sockets=sockets)
    _own_folder(sockets, 0o700 if account.is_ours else 0o711)
    _give(places.postgres_sockets, account)
    for folder in (places.logs, places.enrolment, places.agents):
        folder.mkdir(mode=0o700, exist_ok=True)
    return places


def socket_folder(data: Path, tmp: Path) -> Path:
    """A short folder name that is the same at every start from this data folder."""
    mark = hashlib.sha256(os.fsencode(data)).hexdigest()[:10]
    wanted, fallback = (room / f"berth-{mark}" for room in (tmp, Path("/tmp")))
    fits = len(os.fsencode(wanted / "pg" / POSTGRES_SOCKET)) <= LONGEST_SOCKET
    # The path travels inside URLs that three libraries read, each with its own idea of quoting.
    is_plain = PLAIN_PATH.fullmatch(str(wanted)) is not None
    return wanted if fits and is_plain else fallback


def _make_data_folder(data: Path, account: SystemAccount) -> None:
    try:
        data.mkdir(mode=0o700 if account.is_ours else 0o711, parents=True, exist_ok=True)
        (data / ".writable").touch()
        (data / ".writable").unlink()
    except OSError as error:
        raise CannotStart(
            "data_folder",
            f"The data folder {data} cannot be used ({error.strerror}): set BERTH_DATA to a folder of yours.",
        ) from error


def _postgres_folder(data: Path, account: SystemAccount) -> Path:
    """A folder of PostgreSQL's account: in the data folder, or outside where that is out of its reach."""
    if can_reach(account, data):
        return _give(data / "postgres", account)
    for room in OPEN_FOLDERS:
        if room.is_dir() and os.access(room, os.W_OK) and can_reach(account, room):
            return _give(room / f"berth-{socket_folder(data, Path('/tmp')).name[-10:]}", account)
    raise CannotStart(
        "data_folder",
        f"The user {account.name} cannot enter {data}, and PostgreSQL does not run as root: "
        "set BERTH_DATA to a folder that other users may enter.",
    )


def _give(folder: Path, account: SystemAccount) -> Path:
    """Create a folder for the account alone; one that belongs to somebody else is refused."""
    created = not folder.exists()
    folder.mkdir(mode=0o700, exist_ok=True)
    if created and not account.is_ours:
        os.chown(folder, account.uid, account.gid)
    _refuse_foreign(folder, account.uid)
    return folder


def _own_folder(folder: Path, mode: int) -> None:
    """Create a folder of ours under a shared one, where somebody else may have been first."""
    folder.mkdir(mode=mode, exist_ok=True)
    _refuse_foreign(folder, os.geteuid())
    folder.chmod(mode)


def _refuse_foreign(folder: Path, uid: int) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise CannotStart(
            "foreign_folder",
            f"{folder} exists and belongs to another user: remove it, or set TMPDIR or BERTH_DATA elsewhere.",
        )
