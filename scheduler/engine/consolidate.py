"""Whole boards close together: the consolidated rule that published queueing results rest on.

Up to one node's worth goes to the node with the fewest free boards that fits; more takes wholly free nodes
and, for the rest, one more such node. Lowest node first on ties. Source: simulator of Hu et al., "Lucid",
ASPLOS 2023.
"""

from __future__ import annotations

from scheduler.engine.line import NOBODY, Floor, Line, occupy


def tightest(floor: Floor, need: int, ban_whole: int) -> int:
    """The node with the fewest free boards that has ``need`` free, NOBODY if none (kernel).

    The first ``ban_whole`` wholly free nodes are spoken for.
    """
    best, left = NOBODY, 1 << 40
    for node in range(len(floor.free)):
        free = floor.free[node]
        if ban_whole > 0 and free == floor.boards[node]:
            ban_whole -= 1
            continue
        if need <= free < left:
            best, left = node, free
            if free == need:
                break
    return best


def place(line: Line, floor: Floor, row: int) -> bool:
    """Give the request its boards by the consolidated rule; False, and nothing taken, if it does not fit (kernel)."""
    need = line.gpus[row]
    most = floor.holder.shape[1]
    if need <= most:
        node = tightest(floor, need, 0)
        if node == NOBODY:
            return False
        line.home[row] = node
        occupy(line, floor, row, node, need)
        return True
    whole, rest = need // most, need % most
    idle = 0
    for node in range(len(floor.free)):
        if floor.free[node] == most:
            idle += 1
    if idle < whole:
        return False
    extra = NOBODY
    if rest > 0:
        extra = tightest(floor, rest, whole)
        if extra == NOBODY:
            return False
    for node in range(len(floor.free)):
        if whole > 0 and floor.free[node] == most:
            occupy(line, floor, row, node, most)
            whole -= 1
    if rest > 0:
        occupy(line, floor, row, extra, rest)
    return True
