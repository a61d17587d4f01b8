"""What may happen before an agent has shown who it is: little, quickly, and for few sockets at a time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

# A hello of 16 boards with all their MIG profiles takes half of it.
MOST_HELLO_BYTES: Final = 64 * 1024
# Agents behind one proxy or address translation share an address; those beyond it come back in a moment.
MOST_WAITING: Final = 128


class Handshake:
    """One connection until it is admitted or over; whichever is said first stays, over threads too.

    The transaction that admits asks as its last step, so that a hello which came too late changes nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcome = ""

    def admit(self) -> bool:
        """Say that the agent is let in; False where the connection is over already. Safe to repeat."""
        return self._settle("admitted")

    def end(self) -> bool:
        """Say that the connection is over; False where its agent was let in before. Safe to repeat."""
        return self._settle("over")

    def _settle(self, outcome: str) -> bool:
        with self._lock:
            self._outcome = self._outcome or outcome
            return self._outcome == outcome


class UnprovenSockets:
    """How many sockets of each address have not shown yet who they are. One event loop only."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._sockets: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count one more; False, and nothing counted, where the address has as many as it may."""
        if self._sockets[address] >= self._most:
            return False
        self._sockets[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count one less; call once per ``enter`` that returned True."""
        self._sockets[address] -= 1
        if self._sockets[address] <= 0:
            del self._sockets[address]
