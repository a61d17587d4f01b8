"""Spread: the node, and the board, with the most left, so that neighbours are few."""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import Columns, Ints, fits_node
from scheduler.engine.kernel import inlined
from scheduler.engine.place.classic import LargestNode, emptiest, free_gpu
from scheduler.engine.place.node_ratings import Memo


@inlined
def rate(at: Columns, want: Ints, node: int, scale: LargestNode, memo: Memo) -> tuple[float, int, int]:
    """Minus what is free on the node, against the biggest one (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    return -free_gpu(at, node) / scale.gpu, emptiest(at, want, node), 0
