"""Files of this host: how they are read, and small ones that appear whole or not at all."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

# A cgroup that ended between two calls reads as missing, or as a device that is gone.
GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR})

Read = Callable[[str], str]
Write = Callable[[str, str], None]
Folders = Callable[[str], list[str]]
Exists = Callable[[str], bool]


def read_text(path: str) -> str:
    """Read a small file of the host; raises OSError."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


def write_text(path: str, text: str) -> None:
    """Write to a file of the kernel that exists already; raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def subfolders(path: str) -> list[str]:
    """Return the folders right below a folder, none for one that is gone."""
    try:
        with os.scandir(path) as found:
            return sorted(one.path for one in found if one.is_dir(follow_symlinks=False))
    except OSError as no:
        if no.errno in GONE:
            return []
        raise


def put(path: Path, text: str, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Write a file under another name, give it away, then rename it into place; raises OSError."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        if owner is not None:
            os.fchown(fd, *owner)
        os.fchmod(fd, mode)
        os.fsync(fd)
    draft.replace(path)


def remove_tree(folder: Path) -> Path | None:
    """Remove a folder with what is in it; returns something that is in the way of the rest, None once all is gone.

    No link is followed. Folders that their owner has closed are opened where the agent is their owner; what is of
    another account, as a container's root leaves it in a home, only root can remove.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if os.geteuid() != 0 and os.path.lexists(folder):
        # All of it is of this very account or cannot be changed: nothing is won by a link put in between.
        with contextlib.suppress(OSError):
            folder.chmod(0o700)
        for path, names, _files in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):
                    if not (inner := Path(path) / name).is_symlink():
                        inner.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    if not os.path.lexists(folder):
        return None
    mine = os.geteuid()
    for path, names, files in os.walk(folder):
        for name in (*names, *files):
            found = Path(path) / name
            with contextlib.suppress(OSError):
                if found.lstat().st_uid != mine:
                    return found
    return folder


def passable(folder: Path) -> None:
    """Make a folder in which holders open what is theirs by name and list nothing; raises OSError.

    Its mode does not depend on the caller's umask.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)


def spare_folder() -> Path:
    """Make a folder that goes with this process: whoever only looks leaves none behind."""
    folder = mkdtemp(prefix="berth-look-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
