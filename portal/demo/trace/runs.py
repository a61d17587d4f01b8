"""What has become of each row, learnt from events and, where those are missing, from lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from portal.demo.trace.mapping import TraceRequest

OVER = frozenset({"fulfilled", "rejected", "withdrawn", "expired", "impossible", "refused"})


@dataclass(slots=True)
class Run:
    """One row on its way. Times in seconds of the client's monotonic clock; None is not yet."""

    wish: TraceRequest
    position: int
    request: str = ""
    lease: str = ""
    state: str = "new"
    posted_at: float = 0.0
    active_at: float | None = None
    over_at: float | None = None
    is_released: bool = False
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Say whether nothing more will happen to it."""
        return self.state in OVER


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of the values do not pass, None for no values."""
    found = sorted(values)
    return found[max(0, -(-int(len(found) * share * 1000) // 1000) - 1)] if found else None


def latencies_ms(runs: Iterable[Run]) -> list[float]:
    """Return how long each row waited from sending it to its activation, in milliseconds."""
    return [(run.active_at - run.posted_at) * 1000 for run in runs if run.active_at is not None]


def refusals(runs: Iterable[Run]) -> dict[str, int]:
    """Return how many rows came to nothing, by reason."""
    lost = Counter(run.reason or run.state for run in runs if run.is_over and run.state != "fulfilled")
    return dict(sorted(lost.items()))
