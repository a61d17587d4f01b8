"""Scratch folders of this host: one per lease, its holder's alone, removed when the lease is over.

What a lease leaves may be large: at its end its folder is moved aside at once, to where nobody but the agent can go,
and removed by a thread of its own. So the next lease never waits for the files of the last.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Queue
from typing import Final

from nodeagent.host.accounts import Account
from nodeagent.host.removal import remove_tree
from nodeagent.runtimes.base import Key
from nodeagent.runtimes.names import key_of_stem, stem_of

log = logging.getLogger(__name__)

ASIDE: Final = ".removed"
GIB_OF_KIB: Final = 1024 * 1024
MEASURED_WITHIN_S: Final = 60
OTHERS_WRITE: Final = 0o022
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchFolders:
    """The folders below one of the agent's own. Calls for one lease never overlap."""

    def __init__(self, root: Path, account: Callable[[str], Account | None], limit_gib: int = 0) -> None:
        """Make the folder they are in, and remove what an earlier agent had moved aside; raises OSError.

        ``account`` tells who a holder is on this host, None where programs run as the agent; it raises LookupError.
        ``limit_gib`` is what one lease may take, 0 for as much as the disk has.
        """
        self.root = root
        self.limit_gib = limit_gib
        self._account = account
        self._stuck: set[Key] = set()
        self._aside = root / ASIDE
        self._removals: Queue[Path | None] = Queue()
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        facts = root.stat()
        if facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_WRITE:
            raise PermissionError(1, "it belongs to another account, or others may write to it", str(root))
        root.chmod(facts.st_mode & 0o777 | 0o111)  # holders reach what is theirs by name
        self._aside.mkdir(mode=0o700, exist_ok=True)
        for left in self._aside.iterdir():
            self._removals.put(left)
        self._remover = threading.Thread(target=self._remove, name="scratch", daemon=True)
        self._remover.start()

    def path_of(self, key: Key) -> Path:
        """Return where a lease's folder is, or would be."""
        return self.root / stem_of(key)

    def make(self, key: Key, user: str) -> Path:
        """Make a lease's folder, 0700 and its holder's; one that is there already is left as it is.

        Raises OSError, and LookupError for a holder who has no account here.
        """
        holder, path = self._account(user), self.path_of(key)
        uid, gid = (os.geteuid(), os.getegid()) if holder is None else (holder.uid, holder.gid)
        path.mkdir(mode=0o700, exist_ok=True)
        folder = os.open(path, _FOLDER)
        try:
            if os.fstat(folder).st_uid != uid:
                os.fchown(folder, uid, gid)
        finally:
            os.close(folder)
        return path

    def remove(self, key: Key) -> None:
        """Move a lease's folder aside, to be removed soon; gone already is success.

        A disk that refuses is told of in the log: it holds no device back.
        """
        aside = self._aside / f"{stem_of(key)}.{secrets.token_hex(4)}"
        try:
            os.rename(self.path_of(key), aside)
        except FileNotFoundError:
            return
        except OSError as no:
            self._stuck.add(key)
            log.error("the scratch folder of lease %s stays: %s; remove it by hand", key[0], no)
            return
        self._removals.put(aside)

    def empty(self, key: Key) -> None:
        """Give the lease a new folder in place of the one it has; nothing where it has none. Raises OSError."""
        path = self.path_of(key)
        if not path.is_dir():
            return
        facts = path.stat()
        self.remove(key)
        path.mkdir(mode=0o700)
        if facts.st_uid != os.geteuid():
            os.chown(path, facts.st_uid, facts.st_gid)

    def keys(self) -> list[Key]:
        """Return the leases that have a folder, but for those whose folder could not be moved."""
        found = (key_of_stem(path.name) for path in self.root.iterdir())
        return sorted(key for key in found if key is not None and key not in self._stuck)

    def keep_only(self, keys: Iterable[Key]) -> None:
        """Remove the folders of all other leases: those that ended while no agent was there."""
        for key in set(self.keys()) - set(keys):
            self.remove(key)

    def excess_gib(self, key: Key) -> int | None:
        """Return how many GiB a lease has where they are more than it may have, None otherwise; takes seconds.

        What cannot be measured within a minute is unknown, and so no more than allowed. So is a folder that was
        emptied meanwhile: what was counted is not what the next job has.
        """
        path = self.path_of(key)
        words = ["nice", "-n", "19", "du", "-skx", "--", str(path)]
        if not self.limit_gib:
            return None
        try:
            measured = os.open(path, _FOLDER)  # held open, its number is nobody else's
        except OSError:
            return None
        try:
            told = subprocess.run(  # noqa: S603 - our own words, and a path of our own making
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=MEASURED_WITHIN_S,
                check=False,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            ).stdout.split()
            kib = int(told[0])
            is_the_same = os.path.samestat(os.fstat(measured), path.stat())
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
            return None
        finally:
            os.close(measured)
        if not is_the_same:
            return None
        return -(-kib // GIB_OF_KIB) if kib > self.limit_gib * GIB_OF_KIB else None

    def wait(self) -> None:
        """Wait until all that was moved aside is removed."""
        self._removals.join()

    def close(self) -> None:
        """Stop removing; what is left lies aside for the next agent."""
        self._removals.put(None)

    def _remove(self) -> None:
        while (folder := self._removals.get()) is not None:
            try:
                left = remove_tree(folder)
                if left is not None:
                    log.warning("%s cannot be removed, a part of a scratch folder; remove it by hand", left)
            except OSError as no:
                log.warning("%s cannot be removed, a part of a scratch folder: %s", folder, no)
            finally:
                self._removals.task_done()
        self._removals.task_done()
