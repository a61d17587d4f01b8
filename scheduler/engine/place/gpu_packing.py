"""GPU packing: boards already shared first, then nodes already used, idle nodes last."""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import COUNT, WHOLE, Columns, Ints, fits_node, idle_boards
from scheduler.engine.kernel import inlined
from scheduler.engine.place.classic import LargestNode, tightest
from scheduler.engine.place.node_ratings import Memo


@inlined
def rate(at: Columns, want: Ints, node: int, scale: LargestNode, memo: Memo) -> tuple[float, int, int]:
    """Minus the score: 50..100 on a shared board, 33..50 on a used node, up to 33 on an idle one (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    if want[COUNT] == 0:
        return 0.0, -1, 0
    board = tightest(at, want, node)
    if board >= 0 and at.free[node, board] < WHOLE:
        return -max(50.0, 100.0 - at.free[node, board] // 100), board, 0
    idle, boards = idle_boards(at, node), 0
    for one in range(at.free.shape[1]):
        boards += at.free[node, one] >= 0
    if idle < boards:
        return -max(33.0, 50.0 - want[COUNT]), board, 0
    return -max(0.0, 33.0 - idle), board, 0
