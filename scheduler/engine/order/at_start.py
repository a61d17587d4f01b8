"""By the mean duration learned from ended requests, once and for all: for queues that never preempt."""

from __future__ import annotations

from scheduler.engine.columns import Floats
from scheduler.engine.line import Line


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """The learned mean at age 0, at least one second (kernel)."""
    return float(max(table[line.form[row], 0], 1.0))
