"""The time of a pool's agent: it goes on over restarts of its host, because the jobs of the cluster do too.

Within a boot it is the boot clock, which nobody can set. Over a restart of the host the wall clock bridges the gap,
from the last instant that was noted before.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nodeagent.host.files import put

NOTED_EVERY_NS: Final = 60 * 1_000_000_000


class LostPoolError(Exception):
    """The file that says which pool this is was damaged; its message says what to do."""


class PoolClock:
    """Nanoseconds that only grow; ``pool_id`` is who this agent is to the cluster, for as long as its folder lives.

    Raises OSError where the folder cannot be written, LostPoolError where it cannot be told which pool this was.
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
        put(self._file, json.dumps(row), mode=0o600)


def _read(file: Path) -> dict[str, Any]:
    """Return what was noted, nothing where no agent lived here before; raises LostPoolError, OSError."""
    try:
        row = json.loads(file.read_text(encoding="ascii"))
        if isinstance(row["pool_id"], str) and all(
            type(row[name]) is int for name in ("offset", "at", "wall")
        ):
            return dict(row)
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        pass
    raise LostPoolError(
        f"{file} cannot be read, so the jobs of this pool would be taken for somebody else's: bring it back from a"
        " backup, or end the jobs whose comment is the old pool and remove the file"
    )
