"""Use what is in use: open as few idle boards as possible, fill the fullest, on the node with least idle."""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import COUNT, EXCLUSIVE, IDLE, USE, WHOLE, Columns, Ints, fits_board, fits_node
from scheduler.engine.kernel import inlined
from scheduler.engine.place.classic import LargestNode, tightest
from scheduler.engine.place.node_ratings import Memo

# Any number of loads weighs less than one board opened, any number of idle boards less than a load.
OPENED, LOADED = 1e9, 100.0


@inlined
def rate(at: Columns, want: Ints, node: int, scale: LargestNode, memo: Memo) -> tuple[float, int, int]:
    """Boards opened first, then how full the boards are that it joins, then idle boards left (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    idle, load, joined, need = 0, 0, 0, want[COUNT]
    board = tightest(at, want, node)
    for one in range(at.free.shape[1]):
        if fits_board(at, want, node, one):
            if at.use[node, one] == IDLE:
                idle += 1
            elif want[USE] != EXCLUSIVE and (one == board or (board < 0 and joined < need)):
                joined += 1
                load += WHOLE - at.free[node, one]
    return (need - joined) * OPENED - load * LOADED + idle, board, 0
