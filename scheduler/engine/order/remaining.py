"""Shortest predicted remaining time first; an estimate that has passed counts as half of the truth."""

from __future__ import annotations

from scheduler.engine.columns import Floats
from scheduler.engine.line import Line, age_of
from scheduler.engine.order.learned import curve_at


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """Estimate less age, at least one second, and at least the age once the estimate has passed (kernel)."""
    age = age_of(line, row, now)
    left = float(line.estimate[row] - age)
    if line.estimate[row] <= 0:
        return max(curve_at(table, line.form[row], age), 1.0)
    if left < 0:
        left = age * 1.0
    return max(left, 1.0)
