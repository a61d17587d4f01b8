"""Victims that really free a place: who must go so that one request fits, at the least loss.

A victim must be worth clearly less than the newcomer and have had its minimum run. On one node the worst
victims go until the request fits, and those not needed are spared; a gang takes whole nodes that hold
nobody but victims. The loss of a victim is its GPUs over its score: what is nearly done costs much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import Flags, Floats, Ints
from scheduler.engine.line import (
    NOBODY,
    QUEUED,
    WAITING,
    Floor,
    Line,
    pause,
    vacate,
)

NO_WAY = -1.0


class Guard(NamedTuple):
    """Who may be preempted by whom. Seconds, GPUs.

    A victim's score is more than ``factor`` times the newcomer's, and it has run for ``least_run_s`` times
    1 + ``run_growth`` x the times it was preempted before, which are ``most_evictions`` at most. Afterwards
    it owes ``small_cost_s``, or ``large_cost_s`` when it has more than ``large_from`` GPUs.
    """

    factor: float = 1.2
    least_run_s: float = 300.0
    run_growth: float = 1.0
    most_evictions: int = 1 << 60
    small_cost_s: int = 40
    large_cost_s: int = 60
    large_from: int = 8


class Teams(NamedTuple):
    """Fairness between teams, as far as preemption looks at it.

    ``kind`` 0: none. 1: whose ``ratio`` (use over share) is ``hysteresis`` times the newcomer's loses to it.
    2: a request inside its team's guarantee also takes what other teams hold beyond theirs, whatever the
    scores; it never takes a team below its guarantee by that right. ``rank`` orders teams (kind 1), ``used``
    counts boards held now, ``guarantee`` those a team is sure of; ``promised`` and ``stuck`` (the least
    request that failed) are working space.
    """

    kind: int
    hysteresis: float
    ratio: Floats
    rank: Ints
    used: Ints
    guarantee: Ints
    promised: Ints
    stuck: Ints


class Scratch(NamedTuple):
    """Working space of the search, so that it allocates nothing: victims of one node, cost per node."""

    rows: Ints
    cells: Ints
    taken: Flags
    cost: Floats


def new_scratch(floor: Floor) -> Scratch:
    """Working space for this floor."""
    nodes, most = floor.holder.shape
    return Scratch(
        np.zeros(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.bool_), np.zeros(nodes)
    )


def may_take(line: Line, guard: Guard, teams: Teams, row: int, victim: int, now: int) -> bool:
    """Whether the request may preempt the victim now (kernel)."""
    if line.protected[victim] or line.evictions[victim] >= guard.most_evictions:
        return False
    least = guard.least_run_s * (1.0 + guard.run_growth * line.evictions[victim])
    if now - line.since[victim] < max(least, 1.0):
        return False
    is_worse = bool(line.score[victim] > guard.factor * line.score[row])
    own, other = line.team[row], line.team[victim]
    if teams.kind == 0 or own == other:
        return is_worse
    if teams.kind == 1:
        return bool(teams.ratio[other] > teams.hysteresis * teams.ratio[own])
    is_borrowed = teams.used[other] - line.gpus[victim] >= teams.guarantee[other]
    return bool(is_worse or (line.group[row] == 0 and is_borrowed))


def list_victims(
    line: Line, floor: Floor, guard: Guard, teams: Teams, scratch: Scratch, row: int, node: int, now: int
) -> int:
    """Fill ``scratch`` with whom the request may preempt on the node, highest score first; how many (kernel)."""
    count = 0
    for board in range(floor.boards[node]):
        victim = floor.holder[node, board]
        if victim == NOBODY:
            continue
        at = 0
        while at < count and scratch.rows[at] != victim:
            at += 1
        if at < count:
            scratch.cells[at] += 1
            continue
        if not may_take(line, guard, teams, row, victim, now):
            continue
        while at > 0 and line.score[scratch.rows[at - 1]] < line.score[victim]:
            scratch.rows[at] = scratch.rows[at - 1]
            scratch.cells[at] = scratch.cells[at - 1]
            at -= 1
        scratch.rows[at] = victim
        scratch.cells[at] = 1
        count += 1
    return count


def cost_on(
    line: Line, floor: Floor, guard: Guard, teams: Teams, scratch: Scratch, row: int, node: int, now: int
) -> float:
    """What making room on this one node costs, with the victims marked in ``scratch``; NO_WAY if none (kernel)."""
    need, room = line.gpus[row], floor.free[node]
    if floor.boards[node] < need:
        return NO_WAY
    count = list_victims(line, floor, guard, teams, scratch, row, node, now)
    for at in range(len(scratch.taken)):
        scratch.taken[at] = at < count and room < need
        if scratch.taken[at]:
            room += scratch.cells[at]
    if room < need:
        return NO_WAY
    cost = 0.0
    for at in range(count):
        if not scratch.taken[at]:
            break
        if room - scratch.cells[at] >= need:
            scratch.taken[at] = False
            room -= scratch.cells[at]
        else:
            victim = scratch.rows[at]
            cost += line.gpus[victim] / line.score[victim]
    return cost


def cost_of_whole(
    line: Line, floor: Floor, guard: Guard, teams: Teams, scratch: Scratch, row: int, node: int, now: int
) -> float:
    """What emptying this node costs; NO_WAY when somebody on it must stay (kernel)."""
    if floor.free[node] == floor.boards[node]:
        return 0.0
    count = list_victims(line, floor, guard, teams, scratch, row, node, now)
    room, cost = floor.free[node], 0.0
    for at in range(count):
        room += scratch.cells[at]
        victim = scratch.rows[at]
        cost += min(line.gpus[victim], floor.boards[node]) / line.score[victim]
    return cost if room == floor.boards[node] else NO_WAY


def evict(line: Line, floor: Floor, guard: Guard, teams: Teams, victim: int, now: int) -> None:
    """Send a running request back to the end of the queue, with its debt (kernel)."""
    pause(line, victim, now)
    vacate(line, floor, victim)
    line.owed[victim] += guard.large_cost_s if line.gpus[victim] > guard.large_from else guard.small_cost_s
    line.evictions[victim] += 1
    line.state[victim] = WAITING
    line.queue[line.sums[QUEUED]] = victim
    line.sums[QUEUED] += 1
    teams.used[line.team[victim]] -= line.gpus[victim]


def make_room(
    line: Line,
    floor: Floor,
    guard: Guard,
    teams: Teams,
    scratch: Scratch,
    row: int,
    now: int,
    evicted: Ints,
    count: int,
) -> int:
    """Preempt what the request needs, if that gives it a place: it fits afterwards (kernel).

    Victims are written to ``evicted`` from ``count`` on and join the queue; answers the new count, which is
    the old one when no set of victims would do.
    """
    most = floor.holder.shape[1]
    whole = line.gpus[row] > most
    best, best_cost, possible = NOBODY, 0.0, 0
    for node in range(len(floor.free)):
        if whole:
            cost = cost_of_whole(line, floor, guard, teams, scratch, row, node, now)
            if floor.boards[node] < most:
                cost = NO_WAY
            scratch.cost[node] = cost
            possible += cost != NO_WAY
        else:
            cost = cost_on(line, floor, guard, teams, scratch, row, node, now)
            if cost != NO_WAY and (best == NOBODY or cost < best_cost):
                best, best_cost = node, cost
    if not whole:
        if best == NOBODY:
            return count
        cost_on(line, floor, guard, teams, scratch, row, best, now)
        for at in range(most):
            if scratch.taken[at]:
                evict(line, floor, guard, teams, scratch.rows[at], now)
                evicted[count] = scratch.rows[at]
                count += 1
        return count
    nodes = (line.gpus[row] + most - 1) // most
    if possible < nodes:
        return count
    return empty_cheapest(line, floor, guard, teams, scratch, nodes, now, evicted, count)


def empty_cheapest(
    line: Line,
    floor: Floor,
    guard: Guard,
    teams: Teams,
    scratch: Scratch,
    nodes: int,
    now: int,
    evicted: Ints,
    count: int,
) -> int:
    """Empty so many of the nodes priced in ``scratch.cost``, the cheapest first; the new count (kernel)."""
    for _ in range(nodes):
        best = NOBODY
        for node in range(len(floor.free)):
            cost = scratch.cost[node]
            if cost != NO_WAY and (best == NOBODY or cost < scratch.cost[best]):
                best = node
        scratch.cost[best] = NO_WAY
        for board in range(floor.boards[best]):
            victim = floor.holder[best, board]
            if victim != NOBODY:
                evict(line, floor, guard, teams, victim, now)
                evicted[count] = victim
                count += 1
    return count
