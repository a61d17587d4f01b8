"""The fleet as columns: one row per node, one cell per board, so that kernels can look at all of it.

Units: milli-CPU, MiB, thousandths of a board. A node whose CPU or memory nobody knows has ``PLENTY``.
Rows stand in the order that settles ties.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.engine.kernel import inlined

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PLENTY = 1 << 40
NO_BOARD = -1
WHOLE = 1000
IDLE, EXCLUSIVE = 0, 1

# Fields of one row of wants: what one kind of request asks of a node. MILLI is what one unit is worth of
# its board (the larger of share and memory), SHARE and BOARD_MEMORY what it takes. LENGTH is 1 for what will run long
# and -1 for what is short, where neither can be stopped; 0 is no matter.
CPU, MEMORY, MILLI, COUNT, KIND, USE, TEAM, SHARE, BOARD_MEMORY, LENGTH = range(10)
WANT_FIELDS = 10


class Columns(NamedTuple):
    """What is free, per node (N) and per board (N x G).

    ``free`` is what is left of a board by its tighter side, -1 where there is no such board; ``share`` is
    the compute share left. ``use`` is 0 for idle, else the number of the mode that lives there. ``link``
    numbers the link domains of a node, ``numa`` and ``switch`` its NUMA nodes and PCIe switches; ``apart``
    is what a link domain more costs a request for several boards, 0 where a node has only one, ``wake`` what
    the first request on a wholly idle node costs, so that others may stay asleep. ``serves``
    says which boards can serve a kind, ``better`` what it costs that a board is better than the kind needs
    or stands elsewhere (the last cell: any of the node).
    ``long`` marks boards whose holders will run long, and ``apart_long`` is what each of them costs a short request
    on its node, and a long one less.
    ``totals`` holds, in thousandths of boards, the demand that arrived and is not over, the fleet's capacity,
    and the demand that is over.
    """

    cpu: Ints
    memory: Ints
    model: Ints
    free: Ints
    share: Ints
    use: Ints
    link: Ints
    numa: Ints
    switch: Ints
    apart: Floats
    wake: Floats
    long: Flags
    apart_long: Floats
    team: Ints
    board_memory: Ints
    clients: Ints
    serves: Flags
    better: Floats
    totals: Ints


def columns(
    cpu: Any, memory: Any, model: Any, boards: Any, *, kinds: int = 1, board_memory: int = PLENTY
) -> Columns:
    """An idle fleet: per node its milli-CPU, MiB, number of its model and number of boards."""
    boards = np.asarray(boards, np.int64)
    nodes, most = len(boards), max(int(boards.max(initial=0)), 1)
    present = np.arange(most)[None, :] < boards[:, None]
    return Columns(
        cpu=np.array(cpu, np.int64),
        memory=np.array(memory, np.int64),
        model=np.array(model, np.int64),
        free=np.where(present, WHOLE, NO_BOARD).astype(np.int64),
        share=np.where(present, WHOLE, 0).astype(np.int64),
        use=np.zeros((nodes, most), np.int64),
        link=np.zeros((nodes, most), np.int64),
        numa=np.zeros((nodes, most), np.int64),
        switch=np.zeros((nodes, most), np.int64),
        apart=np.zeros(nodes),
        wake=np.zeros(nodes),
        long=np.zeros((nodes, most), np.bool_),
        apart_long=np.zeros(nodes),
        team=np.zeros((nodes, most), np.int64),
        board_memory=np.full((nodes, most), board_memory, np.int64),
        clients=np.full((nodes, most), PLENTY, np.int64),
        serves=np.broadcast_to(present, (kinds, nodes, most)).copy(),
        better=np.zeros((kinds, nodes, most + 1)),
        totals=np.array([0, WHOLE * int(boards.sum()), 0], np.int64),
    )


@inlined
def fits_board(at: Columns, want: Ints, node: int, board: int) -> bool:
    """Whether one unit fits on the board now (kernel)."""
    if not at.serves[want[KIND], node, board]:
        return False
    use = at.use[node, board]
    if want[USE] == EXCLUSIVE:
        return bool(use == IDLE)
    if use != IDLE and (use != want[USE] or (want[TEAM] != 0 and want[TEAM] != at.team[node, board])):
        return False
    return bool(
        at.share[node, board] >= want[SHARE]
        and at.board_memory[node, board] >= want[BOARD_MEMORY]
        and at.clients[node, board] > 0
    )


@inlined
def fits_node(at: Columns, want: Ints, node: int) -> bool:
    """Whether the node has room for all units of the want now (kernel)."""
    if at.cpu[node] < want[CPU] or at.memory[node] < want[MEMORY]:
        return False
    need = want[COUNT]
    if need == 0:
        return True
    for board in range(at.free.shape[1]):
        if fits_board(at, want, node, board):
            need -= 1
            if need == 0:
                return True
    return False


@inlined
def idle_boards(at: Columns, node: int) -> int:
    """How many boards of the node are idle (kernel)."""
    idle = 0
    for board in range(at.free.shape[1]):
        if at.free[node, board] == WHOLE:
            idle += 1
    return idle


@inlined
def is_asleep(at: Columns, node: int) -> bool:
    """Whether the node has boards and nothing is on any of them (kernel)."""
    boards = 0
    for board in range(at.free.shape[1]):
        if at.free[node, board] >= 0:
            boards += 1
            if at.use[node, board] != IDLE:
                return False
    return boards > 0
