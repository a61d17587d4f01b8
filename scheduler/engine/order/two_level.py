"""Two queues by attained GPU-time, first come first served in each.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019: the discretised
two-dimensional least attained service with one threshold.
"""

from __future__ import annotations

from scheduler.engine.columns import Floats
from scheduler.engine.line import Line, age_of

THRESHOLD_GPU_S = 18_000


def rate(line: Line, row: int, now: int, table: Floats) -> float:
    """1 below the threshold, 2 from there on (kernel)."""
    return 2.0 if line.gpus[row] * age_of(line, row, now) >= THRESHOLD_GPU_S else 1.0
