"""The time of a pool's agent: it goes on over restarts of its host, because the jobs of the cluster do too.

Within a boot it is the boot clock, which nobody can set. Over a restart of the host the wall clock bridges the gap,
from the last instant that was noted before.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

NOTED_EVERY_NS: Final = 60 * 1_000_000_000


class PoolClock:
    """Nanoseconds that only grow; ``pool_id`` is who this agent is to the cluster, for as long as its folder lives.

    Raises OSError where the folder cannot be written.
    """

    def __init__(
        self, file: Path, boot_id: str, monotonic: Callable[[], int], wall: Callable[[], int]
    ) -> None:
        self._file, self._boot_id, self._monotonic, self._wall = file, boot_id, monotonic, wall
        known = _read(file)
        self.pool_id: str = known.get("pool_id") or secrets.token_hex(8)
        self._offset = 0
        if known.get("boot_id") == boot_id:
            self._offset = known["offset"]
        elif known:
            slept = max(0, wall() - known["wall"])
            self._offset = known["at"] + slept - monotonic()
        self._noted_at = self()
        self.note()

    def __call__(self) -> int:
        """Return the time now."""
        return self._monotonic() + self._offset

    def keep(self) -> None:
        """Note the time now and then, so that the gap that the wall clock has to bridge stays small."""
        if self() - self._noted_at >= NOTED_EVERY_NS:
            self.note()

    def note(self) -> None:
        """Write down what time it is, in one step."""
        self._noted_at = self()
        row = {
            "pool_id": self.pool_id,
            "boot_id": self._boot_id,
            "offset": self._offset,
            "at": self._noted_at,
            "wall": self._wall(),
        }
        draft = self._file.with_suffix(".tmp")
        draft.write_text(json.dumps(row), encoding="ascii")
        os.replace(draft, self._file)


def _read(file: Path) -> dict[str, Any]:
    try:
        row = json.loads(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    numbers = (
        all(type(row.get(name)) is int for name in ("offset", "at", "wall"))
        if isinstance(row, dict)
        else False
    )
    return row if numbers and isinstance(row.get("pool_id"), str) else {}
