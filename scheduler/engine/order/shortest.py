"""Shortest predicted duration first, whatever has run already."""

from __future__ import annotations

from scheduler.engine.columns import Floats
from scheduler.engine.line import Line


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """The estimate, else what is learned from others, in seconds (kernel)."""
    if line.estimate[row] > 0:
        return float(max(line.estimate[row], 1.0))
    return float(max(table[line.form[row], 0], 1.0))
