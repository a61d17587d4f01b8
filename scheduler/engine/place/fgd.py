"""Fragmentation gradient descent, as published: the placement that wastes least for the typical request.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023. The score is cut to a whole number of 0..100, and the first of equal boards and
nodes wins, as in the authors' program: with finer scores the rule packs worse.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import (
    COUNT,
    CPU,
    EXCLUSIVE,
    MILLI,
    USE,
    Columns,
    Flags,
    Floats,
    Ints,
    fits_board,
    fits_node,
)
from scheduler.engine.kernel import inlined
from scheduler.engine.place.node_ratings import Memo


class TypicalRequests(NamedTuple):
    """Typical requests: milli-CPU, thousandths per board, boards, models they may use, share of all."""

    cpu: Ints
    milli: Ints
    boards: Ints
    allowed: Flags
    share: Floats


@inlined
def fragment(at: Columns, node: int, typical: TypicalRequests) -> float:
    """How much of the node's idle GPU the typical request cannot use, in thousandths of a board (kernel).

    The causes are summed apart and added at the end, which settles the last digit as published.
    """
    total, free_cpu, model = 0, at.cpu[node], at.model[node]
    most = at.free.shape[1]
    for board in range(most):
        total += max(at.free[node, board], 0)
    lacks_both = lacks_gpu = lacks_cpu = plain_fits = plain_lacks = no_access = 0.0
    for one in range(typical.cpu.shape[0]):
        share, milli = typical.share[one], typical.milli[one]
        has_cpu = free_cpu >= typical.cpu[one]
        if typical.boards[one] == 0:
            if has_cpu:
                plain_fits += share * total
            else:
                plain_lacks += share * total
            continue
        if not typical.allowed[one, model]:
            no_access += share * total
            continue
        able, small = 0, 0
        for board in range(most):
            free = at.free[node, board]
            if free >= milli:
                able += 1
            elif free > 0:
                small += free
        if able < typical.boards[one]:
            if has_cpu:
                lacks_gpu += share * total
            else:
                lacks_both += share * total
        elif has_cpu:
            lacks_gpu += share * small
        else:
            lacks_cpu += share * total
    return lacks_both + lacks_gpu + lacks_cpu + plain_fits + plain_lacks + no_access


@inlined
def score(before: float, after: float) -> float:
    """The published score of a placement, 0..100, higher is better (kernel)."""
    return math.floor(100.0 / (1.0 + math.exp(-(before - after) / 1000.0)))


@inlined
def rate(at: Columns, want: Ints, node: int, typical: TypicalRequests, memo: Memo) -> tuple[float, int, int]:
    """Minus the score, with the first board that has the best one (kernel)."""
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    before = fragment(at, node, typical)
    at.cpu[node] -= want[CPU]
    best, found = -1.0, -1
    if want[COUNT] == 1 and want[USE] != EXCLUSIVE:
        for board in range(at.free.shape[1]):
            if fits_board(at, want, node, board):
                at.free[node, board] -= want[MILLI]
                here = score(before, fragment(at, node, typical))
                at.free[node, board] += want[MILLI]
                if here > best:
                    best, found = here, board
    else:
        taken, need = 0, want[COUNT]
        for board in range(at.free.shape[1]):
            if need and fits_board(at, want, node, board):
                at.free[node, board] -= want[MILLI]
                taken |= 1 << board
                need -= 1
        best = score(before, fragment(at, node, typical))
        for board in range(at.free.shape[1]):
            if (taken >> board) & 1:
                at.free[node, board] += want[MILLI]
    at.cpu[node] += want[CPU]
    return -best, found, 0
