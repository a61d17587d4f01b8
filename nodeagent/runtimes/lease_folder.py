"""Folders with one file per generation of a lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeagent.runtimes.base import RuntimeRefusedError


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
