"""By a curve learned from ended requests: the Gittins index or the mean remaining time at the present age."""

from __future__ import annotations

import math

from scheduler.engine.columns import Floats
from scheduler.engine.line import Line, age_of


def curve_at(table: Floats, form: int, age: float) -> float:
    """The form's curve at an age in seconds, between bins along the logarithm of the age (kernel)."""
    last = table.shape[1] - 1
    if age <= 1:
        return float(table[form, 0])
    at = 2.0 * math.log2(age)
    low = int(at)
    if low >= last:
        return float(table[form, last])
    part = at - low
    return float((1.0 - part) * table[form, low] + part * table[form, low + 1])


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """The learned curve, at least one second (kernel)."""
    return max(curve_at(table, line.form[row], age_of(line, row, now)), 1.0)
