"""What the usual rules of the field share.

Scores as in the published comparison (Weng et al., ATC 2023, its program): whole numbers of 0..100, a
share goes to the tightest board. Cost is minus the score.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.engine.columns import COUNT, EXCLUSIVE, USE, Columns, Ints, fits_board
from scheduler.engine.kernel import inlined


class LargestNode(NamedTuple):
    """The biggest node of the fleet: milli-CPU and thousandths of boards."""

    cpu: float
    gpu: float


@inlined
def tightest(at: Columns, want: Ints, node: int) -> int:
    """The board with the least room that still holds one share, -1 for other wants (kernel)."""
    return _most(at, want, node, -1)


@inlined
def emptiest(at: Columns, want: Ints, node: int) -> int:
    """The board with the most room for one share, -1 for other wants (kernel)."""
    return _most(at, want, node, 1)


@inlined
def _most(at: Columns, want: Ints, node: int, sign: int) -> int:
    """The first board on which sign times what is free is most (kernel)."""
    found = -1
    if want[COUNT] == 1 and want[USE] != EXCLUSIVE:
        for board in range(at.free.shape[1]):
            if fits_board(at, want, node, board) and (
                found < 0 or sign * at.free[node, board] > sign * at.free[node, found]
            ):
                found = board
    return found


@inlined
def free_gpu(at: Columns, node: int) -> int:
    """Free thousandths of all boards of the node (kernel)."""
    total = 0
    for board in range(at.free.shape[1]):
        total += max(at.free[node, board], 0)
    return total
