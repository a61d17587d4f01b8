"""The index that orders by length go by: length x size^0.8 / (1 + waited / ageing_s)^power, low goes first."""

from __future__ import annotations

SIZE_POWER = 0.8
# Ageing weakens under pressure, which is what the queue asks over what the fleet has: 2 / (1 + 3 x pressure).
AGEING_POWER, RELIEF = 2.0, 3.0


def index(length_s: float, cost_milli: int, waited_s: float, ageing_s: float, power: float) -> float:
    """The index of something that needs so many weighted thousandths of a device for so long."""
    size: float = (max(cost_milli, 1) / 1000) ** SIZE_POWER
    aged: float = (1.0 + waited_s / ageing_s) ** power
    return max(length_s, 1.0) * size / aged


def waited_s(now: float, queued_at: float, ran_s: float) -> float:
    """Seconds that a request has waited; what it ran before it was preempted was no waiting."""
    return max(0.0, now - queued_at - ran_s)
