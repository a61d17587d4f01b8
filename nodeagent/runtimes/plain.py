"""Leases without a boundary: a file of variables that the holder's shell reads. For hosts that have nothing better.

``. /run/berth/leases/<lease>.env`` points CUDA at the lease's partition. Nothing keeps anybody to it, so the
entrance says that it is not isolated, and the agent never guesses whose process is whose.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import put
from nodeagent.protocol.variables import export_lines
from nodeagent.runtimes.base import (
    ENV_FILE,
    ISOLATED,
    RUNTIME,
    Key,
    LeaseEntrance,
    LeaseGrant,
    RuntimeRefusedError,
    require_harmless,
)
from nodeagent.runtimes.lease_folder import LeaseFolder
from nodeagent.runtimes.names import key_of_stem, stem_of

FOLDER_NAME: Final = "leases"
ENDING: Final = ".env"


class PlainRuntime:
    """One file per generation of a lease, readable by its holder alone."""

    name = "plain"
    is_isolating = False

    def __init__(
        self,
        run_dir: Path,
        *,
        account: Callable[[str], Account] = account_of,
        is_root: bool | None = None,
    ) -> None:
        """Keep files below ``run_dir``, which a reboot empties; only root can give them to their holders."""
        self._folder = LeaseFolder(run_dir / FOLDER_NAME, self.name)
        self._account = account
        self._is_root = os.geteuid() == 0 if is_root is None else is_root

    def why_not(self) -> str:
        """Return "": this works everywhere."""
        return ""

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Write the lease's variables, if they are not there as they should be."""
        require_harmless(grant)
        path = self._path(grant.key)
        owner = self._owner(grant)
        with self._folder.trouble("write", path):
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            path.parent.chmod(0o711)  # holders may open their own file by name, and list nothing
            if not _is_as(path, exports(grant.env), owner):
                put(path, exports(grant.env), mode=0o600, owner=owner)
        return LeaseEntrance({RUNTIME: self.name, ISOLATED: "no", ENV_FILE: str(path)})

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return that the holder has no account here, where files are given to their holders."""
        try:
            require_harmless(grant)
            self._owner(grant)
        except RuntimeRefusedError as no:
            return no
        return None

    def close(self, key: Key, *, kill: bool) -> None:
        """Remove the file. Processes are not touched: which are the lease's is not known here."""
        self._folder.remove(self._path(key))

    def pids(self, key: Key) -> list[int]:
        """Return none: processes of a lease carry no mark here."""
        return []

    def known(self) -> list[Key]:
        """Return every lease that has a file."""
        names = [file.name for file in self._folder.files()]
        stems = [name.removesuffix(ENDING) for name in names if name.endswith(ENDING)]
        return sorted(key for stem in stems if (key := key_of_stem(stem)) is not None)

    def whole(self) -> list[Key]:
        """Return the same: there is one way in."""
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        """Return None: see ``pids``."""
        return None

    def _owner(self, grant: LeaseGrant) -> tuple[int, int] | None:
        if not self._is_root:
            return None
        try:
            account = self._account(grant.user)
        except LookupError as no:
            raise RuntimeRefusedError("no_account", str(no.args[0] if no.args else no)) from no
        return account.uid, account.gid

    def _path(self, key: Key) -> Path:
        return self._folder.path / f"{stem_of(key)}{ENDING}"


def exports(env: dict[str, str]) -> str:
    """Return variables as lines of a POSIX shell, safe for any value."""
    return "".join(f"{line}\n" for line in export_lines(env))


def _is_as(path: Path, text: str, owner: tuple[int, int] | None) -> bool:
    try:
        facts = path.lstat()
        is_owned = owner is None or (facts.st_uid, facts.st_gid) == owner
        return is_owned and facts.st_mode & 0o777 == 0o600 and path.read_text(encoding="utf-8") == text
    except OSError:
        return False
