"""Durations on a logarithmic scale: two bins to a doubling, 44 of them, the last one open."""

from __future__ import annotations

import math

import numpy as np

from scheduler.engine.columns import Floats, Ints

BINS = 44
LOW: Floats = np.array([0.0, *(2 ** (b / 2) for b in range(1, BINS))])
HIGH: Floats = np.array([2 ** ((b + 1) / 2) for b in range(BINS)])
MIDDLE: Floats = np.sqrt(np.maximum(LOW, 0.7) * HIGH)


def bin_of(seconds: float) -> int:
    """The bin of a duration in seconds: bin b > 0 begins at 2^(b/2) seconds."""
    if seconds < 1:
        return 0
    return min(BINS - 1, int(2 * math.log2(seconds)))


def bins_of(seconds: Floats) -> Ints:
    """The bins of many durations."""
    found: Ints = np.minimum(2.0 * np.log2(np.maximum(seconds, 1.0)), BINS - 1).astype(np.int64)
    return found
