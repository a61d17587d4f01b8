"""What waits to be written to one socket: bounded, whatever the reader does."""

from __future__ import annotations

import asyncio
from collections import deque

MOST_TEXTS = 4096
MOST_CHARACTERS = 2 * 1024 * 1024


class Mailbox:
    """Texts that must arrive, in order, and after them the newest frame of each topic.

    A slow reader loses frames that were overtaken, never an event; one who lets events pile up
    beyond the bounds ``is_over`` and must come back and read the rows again.
    """

    __slots__ = ("_characters", "_frames", "_news", "_texts", "dropped", "is_over")

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._frames: dict[str, str] = {}
        self._characters = 0
        self._news = asyncio.Event()
        self.dropped = 0
        self.is_over = False

    def put(self, text: str) -> None:
        """Add a text that must arrive."""
        self._texts.append(text)
        self._characters += len(text)
        if len(self._texts) > MOST_TEXTS or self._characters > MOST_CHARACTERS:
            self._texts.clear()
            self._frames.clear()
            self._characters = 0
            self.is_over = True
        self._news.set()

    def put_frame(self, topic: str, text: str) -> None:
        """Add the newest frame of a topic in place of one that still waits."""
        if self._frames.pop(topic, None) is not None:
            self.dropped += 1
        self._frames[topic] = text
        self._news.set()

    def forget(self, topic: str) -> None:
        """Drop the waiting frame of a topic."""
        self._frames.pop(topic, None)

    def waiting(self) -> int:
        """Return how many texts and frames wait."""
        return len(self._texts) + len(self._frames)

    async def take(self) -> str | None:
        """Return the next text, waiting for one; None when too much has piled up."""
        while not (self._texts or self._frames or self.is_over):
            self._news.clear()
            await self._news.wait()
        if self.is_over:
            return None
        if self._texts:
            text = self._texts.popleft()
            self._characters -= len(text)
            return text
        topic = next(iter(self._frames))
        return self._frames.pop(topic)
