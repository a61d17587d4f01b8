"""A journal that agents die over."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from nodeagent.reconcile.journal import Journal, Record
from nodeagent.simulation.faults import SimulatedCrash


class CrashingJournal(Journal):
    """A journal whose every write may be the agent's last, torn in the middle or not."""

    def __init__(self, path: Path, change: Callable[[str], None], dice: random.Random) -> None:
        super().__init__(path)
        self._change, self._dice = change, dice

    def append(self, records: Iterable[Record], *, sync: bool) -> None:
        """Write, unless the agent dies before, in the middle or after."""
        lines = list(records)
        if not lines:
            return
        try:
            self._change("journal.before")
        except SimulatedCrash:
            if self._dice.random() < 0.5:
                self._tear(lines, sync=sync)
            raise
        super().append(lines, sync=sync)
        self._change("journal.after")

    def _tear(self, lines: list[Record], *, sync: bool) -> None:
        """Leave a line without its end, as a process that dies while writing does."""
        before = self.path.stat().st_size if self.path.exists() else 0
        super().append(lines, sync=sync)
        with self.path.open("rb+") as out:
            out.truncate(self._dice.randrange(before, self.path.stat().st_size))
