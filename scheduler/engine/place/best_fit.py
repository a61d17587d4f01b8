"""Best fit: the node with the least CPU and GPU left over, each against the biggest node."""

from __future__ import annotations

import math

import numpy as np

from scheduler.engine.columns import COUNT, CPU, MILLI, Columns, Ints, fits_node
from scheduler.engine.kernel import inlined
from scheduler.engine.place.classic import LargestNode, free_gpu, tightest
from scheduler.engine.place.node_ratings import Memo


@inlined
def rate(at: Columns, want: Ints, node: int, scale: LargestNode, memo: Memo) -> tuple[float, int, int]:
    """Minus the score: 100 when nothing would be left (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    cpu = (at.cpu[node] - want[CPU]) / scale.cpu
    gpu = (free_gpu(at, node) - want[COUNT] * want[MILLI]) / scale.gpu
    return -float(math.floor(100.0 * (1.0 - 0.5 * cpu - 0.5 * gpu))), tightest(at, want, node), 0
