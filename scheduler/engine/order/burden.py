"""What orders by length go by: length x size^0.8 / (1 + waited / ageing_s)^power; low goes first."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler.engine.columns import Floats

SIZE_POWER = 0.8
# Ageing weakens under pressure, which is what the queue asks over what the fleet has: 2 / (1 + 3 x pressure).
AGEING_POWER, RELIEF = 2.0, 3.0
# What cannot be stopped ages so much later: once it runs it keeps out all that are shorter, to its end.
UNSTOPPABLE_AGEING = 288.0


def burden(length_s: Any, cost_milli: Any) -> Floats:
    """Length x size^0.8 of what needs so many weighted thousandths of a device for so long; all are columns."""
    found: Floats = np.maximum(length_s, 1.0) * (np.maximum(cost_milli, 1) / 1000) ** SIZE_POWER
    return found


def aged(waited_s: Any, ageing_s: Any, power: float) -> Floats:
    """By what a burden is divided for the time waited."""
    found: Floats = (1.0 + np.asarray(waited_s) / ageing_s) ** power
    return found


def overload(asked: int, capacity: int) -> float:
    """How pressing it is that others wait, from 0 (nobody does) towards 1, by what the queue asks."""
    return 1.0 - 1.0 / (1.0 + RELIEF * asked / max(capacity, 1))


def power_at(asked: int, capacity: int) -> float:
    """How strongly the time waited counts under the pressure of what the queue asks."""
    return AGEING_POWER / (1.0 + RELIEF * asked / max(capacity, 1))


def waited_s(now: float, queued_at: float, ran_s: float) -> float:
    """Seconds that a request has waited; what it ran before it was preempted was no waiting."""
    return max(0.0, now - queued_at - ran_s)
