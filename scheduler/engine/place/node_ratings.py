"""How well every node suits a want: rated once per kind of want, and again only when the node changed.

A policy is three kernels (``policy.py``): ``rate`` says what a placement costs, ``weigh`` what its marks
cost just now, ``note`` keeps running figures. The index remembers each rating, follows a log of changed
nodes and keeps the least cost of each block of nodes, so that a decision looks at few rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.engine.columns import (
    BOARD_MEMORY,
    COUNT,
    CPU,
    EXCLUSIVE,
    IDLE,
    KIND,
    LENGTH,
    MEMORY,
    MILLI,
    SHARE,
    TEAM,
    USE,
    WHOLE,
    Columns,
    Floats,
    Ints,
    fits_board,
    is_asleep,
)  # fmt: skip
from scheduler.engine.kernel import inlined

BLOCK = 64
NOWHERE = -1
SAME = 1e-9  # costs closer than this are a tie, and a tie goes to the first node
NEVER = np.inf
MARKS = 1 << 6  # a bit for each of six reserves
NODE_FIGURES = 5
FARTHEST = 1 << 60
# A board that changed: its node, what is left of that node's milli-CPU and MiB, its cell, and what is left in it.
CHANGE_FIELDS = (
    "node", "cpu", "memory", "cell", "free", "share", "board_memory", "use", "team", "clients", "long",
)  # fmt: skip


class NodeRatings(NamedTuple):
    """Ratings of every want (S) on every node (N), and which nodes changed since.

    ``pick`` packs the board of a fractional placement and the marks of the placement. ``log`` is a ring
    of the last N changed nodes; ``head`` counts changes and look-ups.
    """

    cost: Floats
    pick: NDArray[np.int16]
    low: Floats
    seen: Ints
    log: Ints
    stamp: Ints
    head: Ints


class Memo(NamedTuple):
    """What a policy remembers between decisions: the price of each set of marks, and its own figures, of all nodes
    together and of each.
    """

    price: Floats
    figures: Floats
    nodes: Floats


def new_index(wants: int, nodes: int) -> NodeRatings:
    """An index that has rated nothing yet."""
    blocks = -(-nodes // BLOCK)
    return NodeRatings(
        cost=np.full((wants, nodes), NEVER),
        pick=np.zeros((wants, nodes), np.int16),
        low=np.full((wants, blocks), NEVER),
        seen=np.full(wants, -1, np.int64),
        log=np.zeros(nodes, np.int64),
        stamp=np.zeros(nodes, np.int64),
        head=np.zeros(2, np.int64),
    )


def grown(index: NodeRatings) -> NodeRatings:
    """The index with room for twice as many wants."""
    more = new_index(len(index.seen), len(index.stamp))
    both = {
        name: np.concatenate([getattr(index, name), getattr(more, name)])
        for name in ("cost", "pick", "low", "seen")
    }
    return index._replace(**both)


def new_memo(nodes: int) -> Memo:
    """Nothing remembered."""
    return Memo(np.zeros(MARKS), np.zeros(16), np.zeros((nodes, NODE_FIGURES)))


def rate(at: Columns, want: Ints, node: int, tables: Any, memo: Memo) -> tuple[float, int, int]:
    """Stands for the policy's kernel: cost, board (-1 for whole boards) and marks of a placement."""
    raise NotImplementedError


def weigh(at: Columns, want: Ints, tables: Any, memo: Memo) -> None:
    """Stands for the policy's kernel: sets what each set of marks costs in this decision."""
    raise NotImplementedError


def note(at: Columns, node: int, tables: Any, memo: Memo, sign: int) -> None:
    """Stands for the policy's kernel: the node is about to change (-1), has changed (+1)."""
    raise NotImplementedError


@inlined
def with_wishes(at: Columns, want: Ints, node: int, cost: float, board: int) -> float:
    """The policy's cost and what wishes add: boards suited, in the zone, close, on an awake node, beside what runs as
    long (kernel).
    """
    cost += want[COUNT] * at.better[want[KIND], node, board]  # board -1: the last cell, any of the node
    if at.apart[node] > 0 and want[COUNT] > 1 and want[USE] == EXCLUSIVE and cost < NEVER:
        cost += at.apart[node] * links_apart(at, want, node)
    if at.wake[node] > 0 and want[COUNT] > 0 and cost < NEVER and is_asleep(at, node):
        cost += at.wake[node]
    if want[LENGTH] != 0 and at.apart_long[node] > 0 and cost < NEVER:
        for one in range(at.long.shape[1]):
            if at.long[node, one]:
                cost -= want[LENGTH] * at.apart_long[node]
    return cost


@inlined
def cost_on(
    at: Columns, index: NodeRatings, want: Ints, row: int, node: int, tables: Any, memo: Memo
) -> float:
    """Rate the node anew for the want, the least cost of its block aside (kernel)."""
    cost, board, marks = rate(at, want, node, tables, memo)
    if cost < NEVER:
        cost = with_wishes(at, want, node, cost, board)
    index.cost[row, node] = cost
    index.pick[row, node] = (board + 1) | (marks << 8)
    return cost


def least_of(index: NodeRatings, row: int, block: int) -> None:
    """Look up the least cost of a block (kernel)."""
    low = NEVER
    for node in range(block * BLOCK, min((block + 1) * BLOCK, index.cost.shape[1])):
        low = min(low, index.cost[row, node])
    index.low[row, block] = low


def catch_up(at: Columns, index: NodeRatings, want: Ints, row: int, tables: Any, memo: Memo) -> None:
    """Rate what changed since the want was last asked for (kernel)."""
    nodes = index.cost.shape[1]
    end, seen = index.head[0], index.seen[row]
    index.seen[row] = end
    is_new = seen < 0 or end - seen >= nodes
    first, last = (0, nodes) if is_new else (seen, end)
    if not is_new:
        index.head[1] += 1
    now = index.head[1]
    # One loop for both: what rates a node is compiled into each place that calls it.
    for step in range(first, last):
        node = step if is_new else index.log[step % nodes]
        if not is_new and index.stamp[node] == now:
            continue
        old = index.cost[row, node]
        cost = cost_on(at, index, want, row, node, tables, memo)
        if is_new:
            continue
        index.stamp[node] = now
        block = node // BLOCK
        if cost <= index.low[row, block]:
            index.low[row, block] = cost
        elif old <= index.low[row, block]:
            least_of(index, row, block)
    if is_new:
        for block in range(index.low.shape[1]):
            least_of(index, row, block)


def choose(at: Columns, index: NodeRatings, wants: Ints, row: int, tables: Any, memo: Memo) -> int:
    """The node on which the want costs least, the first of equals; NOWHERE when none has room (kernel)."""
    catch_up(at, index, wants[row], row, tables, memo)
    weigh(at, wants[row], tables, memo)
    best, found = NEVER, NOWHERE
    nodes = index.cost.shape[1]
    for block in range(index.low.shape[1]):
        if index.low[row, block] >= best - SAME:
            continue
        for node in range(block * BLOCK, min((block + 1) * BLOCK, nodes)):
            cost = index.cost[row, node]
            if cost < NEVER:
                cost += memo.price[index.pick[row, node] >> 8]
                if cost < best - SAME:
                    best, found = cost, node
    return found


def boards_of(at: Columns, index: NodeRatings, wants: Ints, row: int, node: int) -> int:
    """The boards a want gets on its node, one bit each (kernel).

    Whole boards: as few link domains as possible. One share: the board that was rated. More: the tightest.
    """
    want = wants[row]
    if want[USE] == EXCLUSIVE:
        return whole_boards(at, want, node)
    board = int(index.pick[row, node] & 255) - 1
    if want[COUNT] == 1 and board >= 0:
        return 1 << board
    chosen = 0
    for _ in range(want[COUNT]):
        tight, found = WHOLE + 1, NOWHERE
        for board in range(at.free.shape[1]):
            free = at.free[node, board]
            if free < tight and not (chosen >> board) & 1 and fits_board(at, want, node, board):
                tight, found = free, board
        chosen |= 1 << found
    return chosen


def whole_boards(at: Columns, want: Ints, node: int) -> int:
    """Idle boards for the want, one bit each (kernel).

    As few link domains as possible, then NUMA nodes, then PCIe switches; of equally tight places the one
    that leaves the least behind, so that bigger domains stay whole; then the first.
    """
    most, open_boards, count = at.free.shape[1], 0, 0
    for board in range(most):
        if fits_board(at, want, node, board):
            open_boards |= 1 << board
            count += 1
    chosen, need = 0, want[COUNT]
    if count <= need:
        return open_boards
    while need > 0:
        best, found, seen = FARTHEST, 0, 0
        for seed in range(most):
            if ((open_boards & ~seen) >> seed) & 1:
                key, got, mates = around(at, node, open_boards, chosen, seed, need)
                seen |= mates
                if key < best:
                    best, found = key, got
        open_boards &= ~found
        chosen |= found
        for board in range(most):
            need -= (found >> board) & 1
    return chosen


def around(
    at: Columns, node: int, open_boards: int, chosen: int, seed: int, need: int
) -> tuple[int, int, int]:
    """Up to ``need`` open boards of the seed's NUMA node, those of its switch first (kernel).

    Answers how far they are from ideal (digits of 64: a new link domain, boards missing in the domain and
    in the NUMA node, a new NUMA node, switches, boards left behind in domain, NUMA node and switch), the
    boards, and all open boards of the seed's switch.
    """
    link, numa, switch = at.link[node, seed], at.numa[node, seed], at.switch[node, seed]
    new_link, new_numa, in_link, in_numa, mates, others = 1, 1, 0, 0, 0, 0
    got, size, in_switch = 0, 0, 0
    for board in range(at.free.shape[1]):
        if at.link[node, board] != link:
            continue
        is_near = at.numa[node, board] == numa
        if (chosen >> board) & 1:
            new_link = 0
            new_numa = 0 if is_near else new_numa
        elif (open_boards >> board) & 1:
            in_link += 1
            in_numa += is_near
            if is_near and at.switch[node, board] == switch:
                in_switch += 1
                mates |= 1 << board
                if size < need:
                    got |= 1 << board
                    size += 1
            elif is_near:
                others |= 1 << board
    left_in_switch, switches, last = in_switch - size, 1, -1
    for board in range(at.free.shape[1]):
        if size < need and (others >> board) & 1:
            got |= 1 << board
            size += 1
            if at.switch[node, board] != last:
                switches += 1
                last = at.switch[node, board]
    key = new_link * 64 + max(need - in_link, 0)
    key = ((key * 64 + need - size) * 64 + new_numa) * 64 + switches
    key = ((key * 64 + in_link - size) * 64 + in_numa - size) * 64 + left_in_switch
    return key, got, mates


def links_apart(at: Columns, want: Ints, node: int) -> int:
    """How many link domains more than one the want's boards span on the node (kernel)."""
    boards, apart = whole_boards(at, want, node), -1
    for board in range(at.free.shape[1]):
        is_new = (boards >> board) & 1
        for earlier in range(board):
            if (boards >> earlier) & 1 and at.link[node, earlier] == at.link[node, board]:
                is_new = 0
        apart += is_new
    return apart


def decide(
    at: Columns, index: NodeRatings, wants: Ints, row: int, changes: Ints, tables: Any, memo: Memo
) -> tuple[int, int]:
    """The node on which the want costs least, NOWHERE when none has room, and its boards as bits (kernel).

    ``changes`` are written down first: handing over all columns once more would take longer than deciding.
    """
    fill_in(at, index, changes, tables, memo)
    node = choose(at, index, wants, row, tables, memo)
    if node == NOWHERE:
        return NOWHERE, 0
    return node, boards_of(at, index, wants, row, node)


def count_all(at: Columns, tables: Any, memo: Memo) -> None:
    """Let the policy look at every node (kernel)."""
    for node in range(at.cpu.shape[0]):
        note(at, node, tables, memo, 1)


def fill_in(at: Columns, index: NodeRatings, changes: Ints, tables: Any, memo: Memo) -> None:
    """Write down what is left of boards that changed, and of their nodes (kernel).

    ``changes`` has a row for each board, those of a node one after another: ``CHANGE_FIELDS``.
    """
    last = NOWHERE
    for row in range(changes.shape[0]):
        node, board = changes[row, 0], changes[row, 3]
        if node != last:
            if last != NOWHERE:
                note(at, last, tables, memo, 1)
                changed(index, last)
            note(at, node, tables, memo, -1)
            at.cpu[node], at.memory[node] = changes[row, 1], changes[row, 2]
            last = node
        at.totals[0] += max(at.free[node, board], 0) - max(changes[row, 4], 0)
        at.free[node, board] = changes[row, 4]
        at.share[node, board] = changes[row, 5]
        at.board_memory[node, board] = changes[row, 6]
        at.use[node, board] = changes[row, 7]
        at.team[node, board] = changes[row, 8]
        at.clients[node, board] = changes[row, 9]
        at.long[node, board] = changes[row, 10] > 0
    if last != NOWHERE:
        note(at, last, tables, memo, 1)
        changed(index, last)


def changed(index: NodeRatings, node: int) -> None:
    """Remember that the node is no longer what was rated (kernel)."""
    index.log[index.head[0] % index.log.shape[0]] = node
    index.head[0] += 1


def take(
    at: Columns, index: NodeRatings, want: Ints, node: int, boards: int, tables: Any, memo: Memo, sign: int
) -> None:
    """Take (+1) or give back (-1) what the want has on these boards (kernel)."""
    note(at, node, tables, memo, -1)
    at.cpu[node] -= sign * want[CPU]
    at.memory[node] -= sign * want[MEMORY]
    for board in range(at.free.shape[1]):
        if (boards >> board) & 1:
            at.free[node, board] -= sign * want[MILLI]
            at.share[node, board] -= sign * want[SHARE]
            at.board_memory[node, board] -= sign * want[BOARD_MEMORY]
            at.clients[node, board] -= sign
            at.team[node, board] = want[TEAM]
            at.use[node, board] = IDLE if at.free[node, board] == WHOLE else want[USE]
    note(at, node, tables, memo, 1)
    changed(index, node)


def play(
    at: Columns,
    index: NodeRatings,
    wants: Ints,
    tables: Any,
    memo: Memo,
    rows: Ints,
    events: Ints,
    nodes: Ints,
    boards: Ints,
) -> None:
    """Decide a sequence of arrivals (request number) and departures (minus number, minus 1) (kernel).

    ``rows`` names the want of each request; ``nodes`` (NOWHERE when refused) and ``boards`` are filled in.
    """
    for event in range(events.shape[0]):
        request = events[event]
        if request < 0:
            request = -request - 1
            row = rows[request]
            at.totals[0] -= wants[row, MILLI] * wants[row, COUNT]
            at.totals[2] += wants[row, MILLI] * wants[row, COUNT]
            if nodes[request] != NOWHERE:
                take(at, index, wants[row], nodes[request], boards[request], tables, memo, -1)
            continue
        row = rows[request]
        at.totals[0] += wants[row, MILLI] * wants[row, COUNT]
        node = choose(at, index, wants, row, tables, memo)
        nodes[request] = node
        if node != NOWHERE:
            boards[request] = boards_of(at, index, wants, row, node)
            take(at, index, wants[row], node, boards[request], tables, memo, 1)
