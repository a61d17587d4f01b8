"""The queue as columns: one row per request, one cell per board, so that kernels can look at all of it.

Times are whole seconds; scores order requests, low first. Rows stand in the order that settles ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import Flags, Floats, Ints

ABSENT, WAITING, RUNNING, OVER = range(4)
NOBODY = -1
# Cells of Line.sums: requests waiting, of these in order since the last pass, free boards, protected boards.
QUEUED, SORTED, FREE, PROTECTED = range(4)


class Line(NamedTuple):
    """Per request: what it asks, where it stands, what it has had.

    ``since`` is when the present state began, ``waited`` and ``age`` are the seconds waited and usefully run
    before that, ``owed`` what it must repay (the cost of having been preempted) before it runs usefully
    again. ``weight`` multiplies its score; ``form`` is its row in the learned table; ``estimate`` is 0 where
    there is none. ``home`` is the node of a request on one node, ``queue`` the rows that wait, in order.
    """

    gpus: Ints
    team: Ints
    form: Ints
    weight: Floats
    estimate: Floats
    state: Ints
    since: Ints
    waited: Ints
    age: Ints
    owed: Ints
    evictions: Ints
    protected: Flags
    home: Ints
    score: Floats
    group: Ints
    queue: Ints
    sums: Ints


class Floor(NamedTuple):
    """Per node: how many boards it has and how many are free; per board: the row that holds it."""

    boards: Ints
    free: Ints
    holder: Ints


def new_line(gpus: Sequence[int], team: Sequence[int], boards: int, queue: int | None = None) -> Line:
    """Nobody has come yet; ``boards`` is how many the floor has, all free."""
    count = len(gpus)
    return Line(
        gpus=np.array(gpus, np.int64),
        team=np.array(team, np.int64),
        form=np.zeros(count, np.int64),
        weight=np.ones(count),
        estimate=np.zeros(count),
        state=np.zeros(count, np.int64),
        since=np.zeros(count, np.int64),
        waited=np.zeros(count, np.int64),
        age=np.zeros(count, np.int64),
        owed=np.zeros(count, np.int64),
        evictions=np.zeros(count, np.int64),
        protected=np.zeros(count, np.bool_),
        home=np.full(count, NOBODY, np.int64),
        score=np.zeros(count),
        group=np.zeros(count, np.int64),
        queue=np.zeros(queue or count, np.int64),
        sums=np.array([0, 0, boards, 0], np.int64),
    )


def new_floor(boards: Sequence[int]) -> Floor:
    """An idle floor of nodes with so many boards each."""
    count = np.array(boards, np.int64)
    return Floor(count, count.copy(), np.full((len(count), int(count.max(initial=1))), NOBODY, np.int64))


def age_of(line: Line, row: int, now: int) -> int:
    """Useful seconds run so far; what is owed is repaid first, so an age never falls (kernel)."""
    if line.state[row] != RUNNING:
        return int(line.age[row])
    return int(line.age[row] + max(now - line.since[row] - line.owed[row], 0))


def waited_by(line: Line, row: int, now: int) -> int:
    """Seconds waited so far, over all times it waited (kernel)."""
    if line.state[row] != WAITING:
        return int(line.waited[row])
    return int(line.waited[row] + now - line.since[row])


def join(line: Line, row: int, now: int) -> None:
    """A request begins to wait (kernel)."""
    line.state[row] = WAITING
    line.since[row] = now
    line.queue[line.sums[QUEUED]] = row
    line.sums[QUEUED] += 1


def begin(line: Line, row: int, now: int) -> None:
    """A waiting request begins to run; the caller takes it off the queue (kernel)."""
    line.waited[row] += now - line.since[row]
    line.state[row] = RUNNING
    line.since[row] = now


def close_ranks(line: Line) -> None:
    """Take everybody who has begun to run off the queue; the others keep their order."""
    waiting = line.queue[: line.sums[QUEUED]]
    still = waiting[line.state[waiting] == WAITING]
    line.queue[: len(still)] = still
    line.sums[SORTED] -= len(waiting) - len(still)
    line.sums[QUEUED] = len(still)


def pause(line: Line, row: int, now: int) -> None:
    """A running request stops; its age and debt are brought up to date (kernel)."""
    ran = now - line.since[row]
    repaid = min(line.owed[row], ran)
    line.age[row] += ran - repaid
    line.owed[row] -= repaid
    line.since[row] = now


def leave(line: Line, floor: Floor, row: int, now: int) -> None:
    """A running request has ended: its boards are free again (kernel)."""
    pause(line, row, now)
    vacate(line, floor, row)
    line.state[row] = OVER
    if line.protected[row]:
        line.sums[PROTECTED] -= line.gpus[row]


def occupy(line: Line, floor: Floor, row: int, node: int, count: int) -> None:
    """The request takes the first free boards of the node (kernel)."""
    floor.free[node] -= count
    line.sums[FREE] -= count
    for board in range(floor.holder.shape[1]):
        if count == 0:
            return
        if board < floor.boards[node] and floor.holder[node, board] == NOBODY:
            floor.holder[node, board] = row
            count -= 1


def vacate(line: Line, floor: Floor, row: int) -> None:
    """The request gives all its boards back (kernel)."""
    first, last = line.home[row], line.home[row] + 1
    if first == NOBODY:
        first, last = 0, len(floor.free)
    for node in range(first, last):
        for board in range(floor.holder.shape[1]):
            if floor.holder[node, board] == row:
                floor.holder[node, board] = NOBODY
                floor.free[node] += 1
                line.sums[FREE] += 1
    line.home[row] = NOBODY
