"""Small files that appear whole or not at all, folders of them, and folders that nobody keeps."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from nodeagent.runtimes.base import RuntimeRefusedError


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


@dataclass(frozen=True, slots=True)
class LeaseFolder:
    """A folder with one file per generation of a lease; what the disk refuses is a refusal of ``runtime``."""

    path: Path
    runtime: str

    def files(self) -> list[Path]:
        """Return what lies in it, by name; nothing where it is not there."""
        with self.trouble("look into", self.path):
            try:
                return sorted(self.path.iterdir())
            except FileNotFoundError:
                return []

    def remove(self, file: Path) -> None:
        """Remove one; gone already is success."""
        with self.trouble("remove", file):
            file.unlink(missing_ok=True)

    @contextmanager
    def trouble(self, doing: str, what: Path) -> Iterator[None]:
        """Turn what the disk refuses inside into RuntimeRefusedError: disks fill up and are emptied again."""
        try:
            yield
        except OSError as no:
            raise RuntimeRefusedError(self.runtime, f"cannot {doing} {what}: {no}", is_passing=True) from no
