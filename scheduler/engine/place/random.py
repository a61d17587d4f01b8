"""Any node with room and any board on it: the yardstick that every rule must beat.

Nothing is drawn: the lot is computed from what the node holds, so that equal inputs give equal plans.
"""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import COUNT, CPU, EXCLUSIVE, USE, Columns, Ints, fits_board, fits_node
from scheduler.engine.kernel import inlined
from scheduler.engine.place.classic import LargestNode, free_gpu
from scheduler.engine.place.node_ratings import Memo

PRIME = 1_000_003


def lot(node: int, cpu: int, free: int) -> int:
    """A number below PRIME that looks drawn (kernel)."""
    mixed = (node * 7_919 + cpu % PRIME * 104_729 + free * 12_889 + 77_003) % PRIME
    return mixed * mixed % PRIME * 48_271 % PRIME


@inlined
def rate(at: Columns, want: Ints, node: int, scale: LargestNode, memo: Memo) -> tuple[float, int, int]:
    """The node's lot, with a board by lot (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    drawn = lot(node, at.cpu[node] + want[CPU], free_gpu(at, node))
    found = -1
    if want[COUNT] == 1 and want[USE] != EXCLUSIVE:
        able = 0
        for board in range(at.free.shape[1]):
            able += fits_board(at, want, node, board)
        skip = drawn % able
        for board in range(at.free.shape[1]):
            if fits_board(at, want, node, board):
                if skip == 0 and found < 0:
                    found = board
                skip -= 1
    return drawn / PRIME, found, 0
