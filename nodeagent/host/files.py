"""Files of this host: how they are read, and small ones that appear whole or not at all."""

from __future__ import annotations

import atexit
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
