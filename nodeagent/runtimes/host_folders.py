"""Folders of the host that a lease is given: a scratch folder of its own, and its team's data sets to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nodeagent.host.removal import remove_tree
from nodeagent.protocol.forms import is_id
from nodeagent.runtimes.base import (
    DATA,
    SCRATCH,
    SCRATCH_GIB,
    Key,
    LeaseEntrance,
    LeaseGrant,
    Runtime,
    RuntimeRefusedError,
    require_harmless,
)
from nodeagent.runtimes.scratch import ScratchFolders

SCRATCH_VARIABLE: Final = "BERTH_SCRATCH"
DATA_VARIABLE: Final = "BERTH_DATA_SETS"


@dataclass(frozen=True, slots=True)
class HostFolders:
    """``scratch`` is where leases have folders of their own, ``data`` has one folder per team; None for none.

    ``temporary`` goes with the agent.
    """

    scratch: ScratchFolders | None = None
    data: Path | None = None
    temporary: Path | None = None

    def data_of(self, team: str) -> Path | None:
        """Return a team's data sets, None where it has none here; what is no plain name is no team's."""
        if self.data is None or not is_id(team):
            return None
        folder = self.data / team
        return folder if folder.is_dir() and not folder.is_symlink() else None

    def close(self) -> None:
        """Leave nothing behind that no later agent would find."""
        if self.scratch is not None:
            self.scratch.close()
        if self.temporary is not None:
            remove_tree(self.temporary)

    def words(self, key: Key, team: str) -> dict[str, str]:
        """Return what a holder is told of the folders of a lease, as words of its entrance."""
        words = {}
        if self.scratch is not None:
            words[SCRATCH] = str(self.scratch.path_of(key))
            if self.scratch.limit_gib:
                words[SCRATCH_GIB] = str(self.scratch.limit_gib)
        if (data := self.data_of(team)) is not None:
            words[DATA] = str(data)
        return words

    def added(self, grant: LeaseGrant) -> LeaseGrant:
        """Return a grant with the folders of its lease, made where they are not there; raises RuntimeRefusedError."""
        require_harmless(grant)
        env, folders, shown = dict(grant.env), list(grant.folders), list(grant.shown)
        if self.scratch is not None:
            try:
                made = self.scratch.make(grant.key, grant.user)
            except LookupError as no:
                raise RuntimeRefusedError("no_account", str(no.args[0] if no.args else no)) from no
            except OSError as no:
                raise RuntimeRefusedError("scratch", f"no scratch folder: {no}", is_passing=True) from no
            env[SCRATCH_VARIABLE] = str(made)
            folders.append(str(made))
        if (data := self.data_of(grant.team)) is not None:
            env[DATA_VARIABLE] = str(data)
            shown.append(str(data))
        veiled = "" if self.data is None else str(self.data)
        return replace(grant, env=env, folders=tuple(folders), shown=tuple(shown), veiled=veiled)


class FolderRuntime:
    """A runtime whose leases have folders: made before a lease is opened, removed once nothing runs in it any more.

    A folder that is there counts as an open lease, so what an agent that was killed left is closed like any other.
    """

    def __init__(self, inner: Runtime, folders: HostFolders) -> None:
        """Add folders to a runtime."""
        self._inner = inner
        self._folders = folders
        self.name = inner.name
        self.is_isolating = inner.is_isolating

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Make the folders, then let the holder in."""
        entrance = self._inner.open(self._folders.added(grant))
        return replace(entrance, words=entrance.words | self._folders.words(grant.key, grant.team))

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return why the runtime would refuse; whether a folder can be made shows when it is."""
        return self._inner.would_refuse(grant)

    def close(self, key: Key, *, kill: bool) -> None:
        """Close the lease; its scratch folder goes with the last of its processes."""
        self._inner.close(key, kill=kill)
        scratch = self._folders.scratch
        if scratch is not None and not self._inner.pids(key):
            scratch.remove(key)

    def pids(self, key: Key) -> list[int]:
        """Return the processes inside."""
        return self._inner.pids(key)

    def known(self) -> list[Key]:
        """Return every lease that is open in any way or has a folder."""
        return sorted({*self._inner.known(), *self._kept()})

    def whole(self) -> list[Key]:
        """Return the leases that are open in every way and have their folder."""
        if self._folders.scratch is None:
            return self._inner.whole()
        return sorted(set(self._inner.whole()) & set(self._kept()))

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease in whose unit a process runs."""
        return self._inner.lease_of(pid)

    def why_not(self) -> str:
        """Return what is missing for the runtime."""
        return self._inner.why_not()

    def _kept(self) -> list[Key]:
        if self._folders.scratch is None:
            return []
        try:
            return self._folders.scratch.keys()
        except OSError as no:
            raise RuntimeRefusedError("scratch", f"cannot look into it: {no}", is_passing=True) from no
