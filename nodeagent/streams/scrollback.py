"""What a terminal showed last, for whoever comes back to it: in a few pages while it prints, deflated once it rests."""

from __future__ import annotations

import zlib
from mmap import mmap
from typing import Final

from nodeagent.protocol.terminals import KEPT_BYTES

# Less than this since it was deflated last is not worth to deflate it again: somebody types.
PACKED_AFTER: Final = 16 * 1024


class Scrollback:
    """The last ``KEPT_BYTES`` of a terminal.

    The ring is memory of its own from the system: it costs what was written to it, and goes back whole. Hundreds of
    terminals that were flooded once would otherwise keep their pieces all over the agent's heap.
    """

    def __init__(self) -> None:
        self._packed = b""
        self._ring: mmap | None = None
        self._count = 0
        self.is_resting = True

    def add(self, data: bytes) -> None:
        """Keep what was shown."""
        self.is_resting = False
        if self._ring is None:
            self._ring, self._count = mmap(-1, KEPT_BYTES), 0
        data = data[-KEPT_BYTES:]
        begin = self._count % KEPT_BYTES
        first = data[: KEPT_BYTES - begin]
        self._ring[begin : begin + len(first)] = first
        if len(first) < len(data):
            self._ring[: len(data) - len(first)] = data[len(first) :]
        self._count += len(data)

    def text(self) -> bytes:
        """Return all that is kept, oldest first."""
        if self._ring is None:
            newest = b""
        elif self._count <= KEPT_BYTES:
            newest = self._ring[: self._count]
        else:
            begin = self._count % KEPT_BYTES
            newest = self._ring[begin:] + self._ring[:begin]
        older = zlib.decompress(self._packed) if self._packed and len(newest) < KEPT_BYTES else b""
        return (older + newest)[-KEPT_BYTES:]

    def rest(self) -> bool:
        """Deflate what is kept where nothing came since the last call; says whether that was worth its time."""
        was_resting, self.is_resting = self.is_resting, True
        if not was_resting or self._ring is None or self._count < PACKED_AFTER:
            return False
        self._packed = zlib.compress(self.text(), 1)
        self._ring.close()
        self._ring = None
        return True
