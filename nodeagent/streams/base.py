"""What services of streams have in common: the end that they talk to, and how they are asked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from nodeagent.protocol.streams import Event
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key


class StreamEnd(Protocol):
    """The agent's end of one gateway's streams, as far as a service needs it."""

    def credit(self, stream: int) -> int:
        """Return how many bytes may be sent now."""
        ...

    def send(self, stream: int, data: bytes | memoryview) -> int:
        """Send as much as the credit allows; returns how much."""
        ...

    def accept(self, stream: int, answer: dict[str, Any]) -> None:
        """Answer a stream that was asked for."""
        ...

    def say(self, stream: int, message: dict[str, Any]) -> None:
        """Send a word beside the bytes."""
        ...

    def end(self, stream: int) -> None:
        """Send no more bytes; the other direction goes on."""
        ...

    def reset(self, stream: int, code: str, detail: str = "") -> None:
        """End a stream."""
        ...

    def consumed(self, stream: int, count: int) -> None:
        """Say that received bytes were drawn."""
        ...


class StreamHandler(Protocol):
    """Serves the streams of some kinds. One event loop; nothing here waits."""

    @property
    def keys(self) -> Collection[Key]:
        """The leases that something of this service is in."""
        ...

    def open(self, end: StreamEnd, stream: int, wish: Any, record: LeaseRecord) -> None:
        """Begin a stream into a ready lease, or refuse it; ``wish`` is of the class that goes with its kind."""
        ...

    def take(self, end: StreamEnd, event: Event) -> None:
        """Act on what was said of a stream; those of other services are passed over. Raises ProtocolError."""
        ...

    def lost(self, end: StreamEnd) -> None:
        """A gateway's socket is gone."""
        ...

    def look(self, over: Collection[Key]) -> None:
        """End what belongs to leases that are over, and whatever else has come to its end."""
        ...

    async def close(self) -> None:
        """End everything: the agent stops."""
        ...
