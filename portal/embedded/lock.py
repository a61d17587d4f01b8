from __future__ import annotations

import fcntl
import os
from pathlib import Path

from portal.embedded.errors import CannotStart


class FolderLock:
    """One supervisor per data folder; the kernel drops the lock when its holder dies."""

    def __init__(self, data: Path) -> None:
        """Take the lock, or raise CannotStart with who holds it."""
        self._file = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 200, 0).decode("utf-8", "replace").strip() or "starting up"
            os.close(self._file)
            raise CannotStart(
                "already_running",
                f"Berth is already running from {data} ({holder}): use that one, "
                "or set BERTH_DATA to another folder for a second one.",
            ) from error
        self.describe(f"process {os.getpid()}")

    def describe(self, text: str) -> None:
        """Leave a line for the one who comes second."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode(), 0)

    def close(self) -> None:
        """Let go. In a forked child this only forgets the descriptor; the parent keeps the lock."""
        os.close(self._file)
