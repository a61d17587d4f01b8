from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
# A child that lived this long was healthy: its next death starts the count afresh. Three times what the slowest
# takes to start; with more, a second kill within half a minute cost a second, the fifth one eight.
HEALTHY_AFTER_S = 10.0


@dataclass(frozen=True)
class Restarts:
    """How often a child failed in a row; a value, so that every step can be looked at."""

    failures: int = 0

    def after_death(self, lived_s: float) -> Restarts:
        """The count once a child that lived so long has died."""
        return Restarts(1 if lived_s >= HEALTHY_AFTER_S else self.failures + 1)

    @property
    def delay_s(self) -> float:
        """Seconds to wait before the next attempt: doubling, with a lid."""
        if not self.failures:
            return 0.0
        return min(FIRST_DELAY_S * 2.0 ** min(self.failures - 1, 10), LONGEST_DELAY_S)
