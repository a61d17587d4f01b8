"""Simulated hardware outlives the agent: every change is a line in a file, read again at the next start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodeagent.reconcile.journal import ENCODE

HARDWARE = "hardware.jsonl"
COMPACT_AFTER = 20_000


class HardwareFile:
    """An append-only list of changes. Not synced: a power cut is a reboot, which loses partitions anyway."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._fd: int | None = None

    def read(self) -> list[dict[str, Any]]:
        """Return all changes so far; a torn last line is left out."""
        if not self.path.exists():
            return []
        changes = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                changes.append(json.loads(line))
            except ValueError:
                break
        return changes

    def rewrite(self, changes: Iterable[dict[str, Any]]) -> None:
        """Replace the whole list by a shorter one that means the same."""
        lines = [ENCODE(change) + "\n" for change in changes]
        draft = self.path.with_suffix(".tmp")
        draft.write_text("".join(lines), encoding="utf-8")
        self.close()
        draft.replace(self.path)
        self.count = len(lines)

    def append(self, change: dict[str, Any]) -> None:
        """Add one change."""
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._fd, ENCODE(change).encode() + b"\n")
        self.count += 1

    @property
    def is_long(self) -> bool:
        """Say whether a rewrite is worth it."""
        return self.count > COMPACT_AFTER

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
