"""Folders that others have filled are removed: whatever is in them, and however deep it goes."""

from __future__ import annotations

import contextlib
import os
import secrets
from itertools import count, islice
from pathlib import Path
from typing import Final

# So many names at once are held in memory: a folder may have millions.
AT_ONCE: Final = 10_000
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> Path | None:
    """Remove a folder with what is in it; returns something that is in the way of the rest, None once all is gone.

    No link is followed. However deep it goes takes neither stack nor descriptors: the folders in it are moved to its
    top and emptied there one by one. Those that their owner has closed are opened where the agent is their owner; what
    is of another account, as a container's root leaves it in a home, only root can remove.
    """
    with contextlib.suppress(OSError):
        folder.unlink()  # a link or a file that stands in its place
    try:
        top = _open(str(folder))
    except OSError:
        return folder if os.path.lexists(folder) else None
    try:
        left = _Emptying(top).run()
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        folder.rmdir()
    if not os.path.lexists(folder):
        return None
    return folder if left is None else folder / left


class _Emptying:
    """One folder that is being emptied. Folders that are still to be emptied are known by their name at its top."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._waiting = [""]
        # Nobody knows these names before they are used.
        prefix = f".{secrets.token_hex(8)}"
        self._names = (f"{prefix}-{number}" for number in count())

    def run(self) -> Path | None:
        """Remove all that can be removed; returns the path in it of something that stays."""
        left: Path | None = None
        while self._waiting:
            name = self._waiting.pop()
            try:
                folder = _open(name or ".", self._top)
            except FileNotFoundError:
                continue
            except OSError:
                left = left or Path(name)
                continue
            try:
                stuck = self._empty(folder, is_top=not name)
                is_ours = os.geteuid() in (0, os.fstat(folder).st_uid)
            finally:
                os.close(folder)
            if stuck is not None:
                left = left or (Path(name, stuck) if is_ours or not name else Path(name))
            elif name:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=self._top)
        return left

    def _empty(self, folder: int, *, is_top: bool) -> str | None:
        """Remove a folder's files, leave its folders waiting at the top; returns the name of something that stays."""
        waiting: set[str] = set()
        stuck: dict[str, None] = {}
        while True:
            with os.scandir(folder) as found:
                fresh = (one for one in found if one.name not in waiting and one.name not in stuck)
                batch = [(one.name, one.is_dir(follow_symlinks=False)) for one in islice(fresh, AT_ONCE)]
            if not batch:
                return next(iter(stuck), None)
            for name, is_folder in batch:
                try:
                    if not is_folder:
                        os.unlink(name, dir_fd=folder)
                    elif is_top:
                        waiting.add(name)
                        self._waiting.append(name)
                    else:
                        self._waiting.append(self._moved(name, folder))
                except FileNotFoundError:
                    continue
                except OSError:
                    stuck[name] = None

    def _moved(self, name: str, folder: int) -> str:
        """Move a folder to the top and return its name there; raises OSError."""
        os.close(_open(name, folder))  # whoever may not write to it cannot move it either
        moved = next(self._names)
        os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=self._top)
        return moved


def _open(name: str, within: int | None = None) -> int:
    """Return a folder to read, with all rights for its owner where that is the agent; raises OSError.

    A link is refused: who may be changed is looked at by what was opened, never by its name.
    """
    found = os.open(name, _FOLDER, dir_fd=within)
    try:
        here = f"/proc/self/fd/{found}"
        facts = os.fstat(found)
        if facts.st_uid == os.geteuid() and facts.st_mode & 0o700 != 0o700:
            os.chmod(here, 0o700)
        return os.open(here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)
