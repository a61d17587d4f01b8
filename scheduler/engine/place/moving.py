"""Moving few running requests to make room for one that finds none: a class of its own.

When an arrival that asks for boards fits nowhere, one running request that stands in its way is moved to
where the policy would put it now, if anywhere. How many may be moved is a percentage of the arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler.engine.columns import COUNT, CPU, KIND, MEMORY, MILLI, Columns, Ints, fits_node
from scheduler.engine.place.index import NOWHERE
from scheduler.engine.place.policy import Decider

TRIES = 12
LEAST_GAIN = 500  # thousandths of a board: for less nobody is disturbed


class Moving:
    """A decider whose running requests are known by number, so that one can be put elsewhere."""

    def __init__(self, decider: Decider, rows: Ints) -> None:
        self.decider = decider
        self.rows = rows
        self.nodes = np.full(len(rows), NOWHERE, np.int64)
        self.boards = np.zeros(len(rows), np.int64)
        self.running = np.zeros(len(rows), np.bool_)
        self.moved = 0

    def place(self, request: int) -> bool:
        """Give the request what the policy chooses now; False when nothing fits."""
        row = int(self.rows[request])
        node = self.decider.choose(row)
        if node == NOWHERE:
            return False
        self.put(request, node, self.decider.boards_of(row, node))
        return True

    def put(self, request: int, node: int, boards: int) -> None:
        """Give the request these boards of the node."""
        self._take(request, node, boards, 1)
        self.nodes[request], self.boards[request], self.running[request] = node, boards, True

    def lift(self, request: int) -> tuple[int, int]:
        """Take back what the request has: its node and boards, which stay written down."""
        node, boards = int(self.nodes[request]), int(self.boards[request])
        self._take(request, node, boards, -1)
        self.running[request] = False
        return node, boards

    def _take(self, request: int, node: int, boards: int, sign: int) -> None:
        one = self.decider
        one.kernels["take"](
            one.at, one.index, one.wants[self.rows[request]], node, boards, one.tables, one.memo, sign
        )

    def make_room(self, request: int) -> bool:
        """Place the request by moving one other; False, with everything as before, when that does not help."""
        want = self.decider.wants[self.rows[request]]
        for other in self._in_the_way(want):
            node, boards = self.lift(other)
            if fits_node(self.decider.at, want, node):
                # The arrival goes to this node first, so that the other cannot come back to it.
                row = int(self.rows[request])
                self.decider.choose(row)  # rates what changed: boards_of reads the rating
                self.put(request, node, self.decider.boards_of(row, node))
                if self.place(other):
                    self.moved += 1
                    return True
                self.lift(request)
                self.nodes[request] = NOWHERE
            self.put(other, node, boards)
        return False

    def _in_the_way(self, want: Ints) -> Iterator[int]:
        """Running requests without which the want could fit on their node, the smallest first."""
        at, running = self.decider.at, np.flatnonzero(self.running)
        wants, nodes = self.decider.wants[self.rows[running]], self.nodes[running]
        enough = (at.cpu[nodes] + wants[:, CPU] >= want[CPU]) & (
            at.memory[nodes] + wants[:, MEMORY] >= want[MEMORY]
        )
        enough &= wants[:, COUNT] <= 1
        enough &= _boards_without(at, want, nodes, self.boards[running], wants[:, MILLI]) >= want[COUNT]
        found = running[enough]
        order = np.lexsort((wants[enough, CPU], wants[enough, MILLI]))[:TRIES]
        return iter(found[order].tolist())


def _boards_without(at: Columns, want: Ints, nodes: Ints, boards: Ints, milli: Ints) -> Ints:
    """How many boards could serve the want on each node if the request there gave its boards back."""
    mine = (boards[:, None] >> np.arange(at.free.shape[1])[None, :]) & 1
    free = at.free[nodes] + mine * milli[:, None]
    return np.asarray((at.serves[want[KIND], nodes] & (free >= want[MILLI])).sum(1), np.int64)


def play_moving(
    decider: Decider, rows: Ints, events: Ints, most_moved_percent: float
) -> tuple[Ints, Ints, int]:
    """Like ``Decider.play``, but up to so many percent of the arrivals are moved once placed.

    Gives the node and boards that each request had last, and how many moves there were.
    """
    play, arrived = Moving(decider, rows), 0
    renewals = set(decider.renewals(rows, events).tolist())
    for at, event in enumerate(events.tolist()):
        if at in renewals:
            decider.renew()
        request = event if event >= 0 else -event - 1
        want = decider.wants[rows[request]]
        asked = int(want[MILLI] * want[COUNT])
        if event < 0:
            decider.at.totals[0] -= asked
            decider.at.totals[2] += asked
            if play.running[request]:
                play.lift(request)
            continue
        arrived += 1
        decider.at.totals[0] += asked
        may_move = 100 * (play.moved + 1) <= most_moved_percent * arrived
        if not play.place(request) and asked >= LEAST_GAIN and may_move:
            play.make_room(request)
    return play.nodes, play.boards, play.moved
