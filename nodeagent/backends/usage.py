"""What a cluster counted for the jobs of leases, sent to the portal: a second opinion of the bill, never the bill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.protocol.cluster_usage import ClusterUsage, ClusterUsageRow
from nodeagent.protocol.limits import MOST_USAGE_ROWS

# What a portal that was away has missed; jobs that ended longer ago stay unknown there.
FIRST_BACK_S: Final = 7 * 86_400
# Accounting that was away gets rows of jobs that ended hours ago, so each reading looks as far back.
NEXT_BACK_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class UsageReading:
    """One look at a cluster's accounting: ``books`` is on, off (none is kept) or away; ``why`` in its own words."""

    books: str
    rows: tuple[ClusterUsageRow, ...] = ()
    why: str = ""


class UsageSource(Protocol):
    """A cluster that counts; ``read`` may block, never raises for a cluster that is away, changes nothing."""

    def read(self, back_s: int) -> UsageReading:
        """Return the jobs of leases that are over, as far back as asked."""
        ...


class PoolUsage:
    """What one connection to the portal was told, and what is new for it.

    ``begin`` with each connection: the frames of the one before may be lost, and what the portal has twice it folds.
    """

    def __init__(self, source: UsageSource, wall: Callable[[], int]) -> None:
        self._source, self._wall = source, wall
        self.begin()

    def begin(self) -> None:
        """Forget what was told: there is a new connection."""
        self._told: set[ClusterUsageRow] = set()
        self._said = ""
        self._back_s = FIRST_BACK_S

    async def news(self, epoch: int) -> list[ClusterUsage]:
        """Return the frames with what is new; one without rows says that accounting began or ceased to answer."""
        reading = await asyncio.to_thread(self._source.read, self._back_s)
        now = self._wall()
        if reading.books == "on":
            self._back_s = NEXT_BACK_S
        fresh = [row for row in reading.rows if row not in self._told]
        starts = range(0, len(fresh), MOST_USAGE_ROWS)
        parts = [tuple(fresh[at : at + MOST_USAGE_ROWS]) for at in starts]
        if not parts and reading.books != self._said:
            parts = [()]
        self._said = reading.books
        self._told = set(reading.rows) | (self._told if reading.books != "on" else set())
        return [ClusterUsage(epoch, now, reading.books, reading.why[:500], part) for part in parts]
