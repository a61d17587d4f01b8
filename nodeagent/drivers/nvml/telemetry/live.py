"""What exists on the devices right now, as far as measuring needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """One partition of a device: a MIG instance (``gi_id``, ``ci_id`` and its ``handle`` known), a share, or all of it.

    ``memory_mib`` and ``share_milli`` are what it may use; a share of 0 is unknown. ``owner`` is the name given
    to ``create``, "" where the device remembers none.
    """

    partition: str
    device: str
    start: int
    mode: str
    memory_mib: int
    share_milli: int = 0
    gi_id: int | None = None
    ci_id: int | None = None
    handle: Any = None
    owner: str = ""
