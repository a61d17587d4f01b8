"""Price and reserve: our placement rule, also called ``default``.

A node is worth what its idle boards can still be sold for. The value of what is left of a board comes from
a covering program over the sizes people ask for; idle boards without CPU beside them are worth nothing; a
small part of the published fragmentation measure keeps mixed nodes usable; and nodes with room for large
requests are kept in reserve as long as such requests are still to be expected. The placement that costs
least of that value wins. Formula, figures and what was tried: ``docs/placement.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import (
    COUNT,
    CPU,
    EXCLUSIVE,
    MILLI,
    USE,
    WHOLE,
    Columns,
    Floats,
    Ints,
    fits_board,
    fits_node,
    idle_boards,
)  # fmt: skip
from scheduler.engine.demand import Demand, Form
from scheduler.engine.kernel import inlined
from scheduler.engine.place.node_ratings import Memo
from scheduler.engine.place.prices import piece_values
from scheduler.engine.place.statistics import allowed, quantile, typical

EVEN = 0.1  # part of a piece's price that is proportional to its size
PART = 1.2  # how much a started board counts in the need for CPU
KNOTS = (0.10, 0.30, 0.50, 0.70, 0.85, 0.95)
RESERVED = (8, 4, 2)
MOST = 0.90  # of the requests of a tier are served by what its nodes have left


class Weights(NamedTuple):
    """How the terms weigh against each other; one unit is the value of an idle board."""

    cpu: float = 0.015
    idle: float = 0.013
    fragment: float = 0.025
    reserve: float = 0.2
    horizon: float = 1.15
    ramp: float = 0.25
    window: float = 0.3
    gather: float = 0.003
    safety: float = 1.0


class Prices(NamedTuple):
    """Tables of one workload: see ``prices``. Thousandths of boards, milli-CPU."""

    piece: Floats
    knots: Floats
    levels: Ints
    alike: Ints
    fits_one: Floats
    fits_many: Floats
    rates: Floats
    reserve_size: Ints
    reserve_cpu: Ints
    weights: Floats
    churn: Floats


def prices(demand: Demand, models: Sequence[str], at: Columns, weights: Weights) -> Prices:
    """The tables for requests that look like ``demand``, on the idle nodes of ``at``.

    ``piece[r]``: price of r free thousandths of a board. ``knots``: milli-CPU wanted per board, six
    quantiles. ``fits_one[table, level, r]`` and ``fits_many[table, level, n]``: share of the typical GPU
    requests that could use a piece of r (n idle boards) on a node whose CPU reaches ``levels[:level]`` and whose
    model has that table in ``alike``: models that the same requests may use share one. For each reserve
    ``reserve_size`` idle boards and ``reserve_cpu`` milli-CPU make a node one of it, and ``rates`` are the requests
    per board of demand that it is kept for.
    """
    forms = demand.counts()
    gpu = {form: number for form, number in forms.items() if form.gpu}
    even = np.arange(WHOLE + 1) / WHOLE
    per_board = [(form.cpu * WHOLE / form.gpu, float(number * form.gpu)) for form, number in gpu.items()]
    levels, alike, fits_one, fits_many = _fits(forms, models, at.free.shape[1])
    reserves = _reserves(gpu, demand.one, at)
    return Prices(
        piece=(1 - EVEN) * piece_values(demand.prices) + EVEN * even,
        knots=np.array([max(quantile(per_board, share), 500.0) for share in KNOTS]),
        levels=levels,
        alike=alike,
        fits_one=fits_one,
        fits_many=fits_many,
        rates=np.array([rate for _, _, rate in reserves]),
        reserve_size=np.array([size for size, _, _ in reserves], np.int64),
        reserve_cpu=np.array([cpu for _, cpu, _ in reserves], np.int64),
        weights=np.array(weights),
        churn=np.zeros(1),
    )


def _reserves(gpu: Mapping[Form, int], one: float, at: Columns) -> list[tuple[int, int, float]]:
    """Boards, milli-CPU and requests per board of demand of each reserve: two tiers for each size.

    The lower tier counts every request of its size, as those of the upper take its nodes as well; the upper one
    counts only the requests that the lower has too little CPU for. What was counted so far says little of what is
    rare, so each size has had one request more (Laplace); ``one`` is what it counts among the numbers.
    """
    found = []
    demand = sum(form.gpu * number for form, number in gpu.items()) / WHOLE or 1.0
    boards = (at.free >= 0).sum(1)
    for size in RESERVED:
        wanted = [(form.cpu, float(number)) for form, number in gpu.items() if form.boards == size]
        there = at.cpu[boards >= size]
        if one:
            wanted.append((_not_seen(wanted, there), one))
        below = -1
        for cpu in tiers(wanted, there):
            found.append((size, cpu, sum(number for needs, number in wanted if needs > below) / demand))
            below = cpu
    return found


def _not_seen(wanted: Sequence[tuple[int, float]], there: Ints) -> int:
    """The milli-CPU of a request that has not come yet: the most that anybody wanted, or all that the largest nodes
    have where nobody has wanted more than the others have.
    """
    largest = int(there.max(initial=0))
    others = int(there[there < largest].max(initial=0))
    most = max((cpu for cpu, _ in wanted), default=0)
    return most if most > others else largest


def tiers(wanted: Sequence[tuple[int, float]], there: Ints) -> tuple[int, int]:
    """The milli-CPU that a node must have left to serve most requests, and most of those it is not enough for.

    ``wanted`` pairs amounts with numbers of requests, ``there`` is the CPU of each node with boards enough. Where
    some requests fit only on the larger nodes, the tiers are nine tenths of those below and above that edge; of
    several edges the one that divides the nodes most evenly. Else they are a half and nine tenths of all.
    """
    best, edge = 0, None
    for here in np.unique(there)[:-1].tolist():
        smaller = int((there <= here).sum())
        even = smaller * (len(there) - smaller)
        if even > best and min(wanted, default=(0, 0.0))[0] <= here < max(wanted, default=(0, 0.0))[0]:
            best, edge = even, here
    if edge is None:
        return int(quantile(wanted, 0.5)), int(quantile(wanted, MOST))
    return (
        int(quantile([one for one in wanted if one[0] <= edge], MOST)),
        int(quantile([one for one in wanted if one[0] > edge], MOST)),
    )


def heeding_churn(p: Prices, at: Columns) -> Prices:
    """The tables heeding the churn: the part of the demand that came and is over.

    The more of it, the less the present cut of a board says about the next one, and the more room that is in
    one piece is worth.
    """
    there, _, gone = (int(total) for total in at.totals)
    churn = gone / max(there + gone, 1)
    even = np.arange(WHOLE + 1) / WHOLE
    return p._replace(piece=(1 - churn) * p.piece + churn * even**2, churn=np.array([churn]))


def _fits(forms: Mapping[Form, int], models: Sequence[str], most: int) -> tuple[Ints, Ints, Floats, Floats]:
    """Levels of CPU, the table of each model, and shares of typical GPU requests that fit a piece, and idle boards,
    by table and level.

    Tables are few: those of a node that is rated then lie in the processor's cache.
    """
    common = [(form, share) for form, share in typical(forms) if form.gpu]
    everything = sum(share for _, share in common) or 1.0
    levels = np.array(sorted({form.cpu for form, _ in common}), np.int64)
    may = allowed([form for form, _ in common], models).T.tolist()
    tables = {users: number for number, users in enumerate(dict.fromkeys(map(tuple, may)))}
    one = np.zeros((len(tables), len(levels) + 1, WHOLE + 1))
    many = np.zeros((len(tables), len(levels) + 1, most + 1))
    for row, (form, share) in enumerate(common):
        from_level = int(np.searchsorted(levels, form.cpu)) + 1
        for users, table in tables.items():
            if not users[row]:
                continue
            if form.boards == 1:
                one[table, from_level:, form.milli :] += share / everything
            else:
                many[table, from_level:, form.boards :] += share / everything
    return levels, np.array([tables[tuple(users)] for users in may], np.int64), one, many


@inlined
def level_of(cpu: int, levels: Ints, highest: int) -> int:
    """How many of the typical amounts of CPU are free, at most ``highest`` (kernel)."""
    # From above: a want takes a few levels, and a search by halves is guessed wrong at every step.
    while highest > 0 and levels[highest - 1] > cpu:
        highest -= 1
    return highest


@inlined
def starved(cpu: int, boards: float, knots: Floats) -> float:
    """How many boards would go without CPU, summed over the guesses of what each needs (kernel)."""
    lost = 0.0
    for knot in knots:
        short = knot * boards - cpu
        if short > 0:
            lost += min(short / knot, boards)
    return lost


@inlined
def whole_part(free: int) -> float:
    """What a started board counts in the need for CPU (kernel)."""
    return PART * free / WHOLE if 200 <= free < WHOLE else 0.0


@inlined
def marks_of(want: Ints, idle: int, cpu: int, idle_after: int, cpu_after: int, p: Prices) -> int:
    """A bit for each reserve that a node leaves and that is not kept for such a want (kernel).

    A want for several boards pays for larger sizes, and for nodes of its own size with more CPU than it needs.
    """
    marks = 0
    for kind in range(p.reserve_size.shape[0]):
        size, need = p.reserve_size[kind], p.reserve_cpu[kind]
        if want[COUNT] > 1 and (size < want[COUNT] or (size == want[COUNT] and need <= want[CPU])):
            continue
        if idle >= size and cpu >= need and not (idle_after >= size and cpu_after >= need):
            marks |= 1 << kind
    return marks


@inlined
def rate(at: Columns, want: Ints, node: int, p: Prices, memo: Memo) -> tuple[float, int, int]:
    """How much value the placement costs, the board it takes best, and the reserves it leaves (kernel).

    What the node is worth before it was reckoned when it last changed (``note``).
    """
    if not fits_node(at, want, node):
        return np.inf, -1, 0
    if want[COUNT] > 1 and want[USE] != EXCLUSIVE:
        return several_shares(at, want, node, p), -1, 0
    most, table = at.free.shape[1], p.alike[at.model[node]]
    w_cpu, w_idle, w_fragment = p.weights[0], p.weights[1] * (1.0 - p.churn[0]), p.weights[2] / WHOLE
    cpu = at.cpu[node]
    cpu_after = cpu - want[CPU]
    idle, parts, before = int(memo.nodes[node, 0]), memo.nodes[node, 1], memo.nodes[node, 2]
    rough_after, level = memo.nodes[node, 3], int(memo.nodes[node, 4])
    level_after = level_of(cpu_after, p.levels, level)
    if level_after != level:
        rough_after = unusable(at, node, table, level_after, p)
    lump = p.weights[7] * p.churn[0] * lumped(at, want, node)
    if want[COUNT] == 1 and want[USE] != EXCLUSIVE:
        best, found, left, last = np.inf, -1, idle, -1
        for board in range(most):
            free = at.free[node, board]
            if free == last or not fits_board(at, want, node, board):
                continue
            last = free  # the next board with as much costs as much
            rest, idle_after = max(free - want[MILLI], 0), idle - (free == WHOLE)
            open_parts = parts - whole_part(free) + whole_part(rest)
            cost = p.piece[free] - p.piece[rest]
            cost += w_cpu * starved(cpu_after, idle_after + open_parts, p.knots) - w_idle * (idle_after > 0)
            here = rough_after - free * (1.0 - p.fits_one[table, level_after, free])
            here += rest * (1.0 - p.fits_one[table, level_after, rest])
            here -= WHOLE * idle_after * p.fits_many[table, level_after, idle_after]
            cost += w_fragment * here - before + lump
            if cost < best - 1e-12:
                best, found, left = cost, board, idle_after
        return best, found, marks_of(want, idle, cpu, left, cpu_after, p)
    idle_after = idle - want[COUNT]
    cost = want[COUNT] * p.piece[WHOLE]
    cost += w_cpu * starved(cpu_after, idle_after + parts, p.knots) - w_idle * (idle_after > 0)
    here = rough_after - want[COUNT] * WHOLE * (1.0 - p.fits_one[table, level_after, WHOLE])
    here -= WHOLE * idle_after * p.fits_many[table, level_after, idle_after]
    marks = marks_of(want, idle, cpu, idle_after, cpu_after, p)
    return cost + w_fragment * here - before + lump, -1, marks


@inlined
def unusable(at: Columns, node: int, table: int, level: int, p: Prices) -> float:
    """What is free on the node in pieces that the typical request cannot use, idle boards alone aside (kernel)."""
    rough = 0.0
    for board in range(at.free.shape[1]):
        free = at.free[node, board]
        if free > 0:
            rough += free * (1.0 - p.fits_one[table, level, free])
    return rough


@inlined
def lumped(at: Columns, want: Ints, node: int) -> float:
    """By how much the square of the node's free boards falls (kernel)."""
    free = 0
    for board in range(at.free.shape[1]):
        free += max(at.free[node, board], 0)
    asked = want[COUNT] * want[MILLI]
    return float((2.0 * free - asked) * asked / (WHOLE * WHOLE))


@inlined
def several_shares(at: Columns, want: Ints, node: int, p: Prices) -> float:
    """Price of what several shares of one request take from the tightest boards, CPU aside (kernel)."""
    chosen, cost = 0, 0.0
    for _ in range(want[COUNT]):
        found = -1
        for board in range(at.free.shape[1]):
            if not (chosen >> board) & 1 and fits_board(at, want, node, board):
                found = board if found < 0 or at.free[node, board] < at.free[node, found] else found
        free = at.free[node, found]
        cost += p.piece[free] - p.piece[max(free - want[MILLI], 0)]
        chosen |= 1 << found
    return cost


def weigh(at: Columns, want: Ints, p: Prices, memo: Memo) -> None:
    """Price of leaving each set of reserves, by how many nodes are in them and still expected (kernel)."""
    seen = max(at.totals[0] + at.totals[2], 1)
    rest = max(0.0, p.weights[4] * at.totals[1] - at.totals[0]) / WHOLE
    rest += p.weights[6] * at.totals[1] / WHOLE * at.totals[2] / seen
    memo.price[0] = 0.0
    for kind in range(p.rates.shape[0]):
        target, cost = p.rates[kind] * rest, 0.0
        # Few requests come in clumps: as many more as a Poisson count varies by.
        target += p.weights[8] * np.sqrt(target)
        if target > 0:
            short = 1.0 + (target - memo.figures[kind]) / max(1.0, p.weights[5] * target)
            cost = p.weights[3] * min(max(short, 0.0), 1.0)
        for marks in range(1 << kind):
            memo.price[(1 << kind) | marks] = memo.price[marks] + cost


def note(at: Columns, node: int, p: Prices, memo: Memo, sign: int) -> None:
    """Count how many nodes are in each reserve, and reckon what the node is worth as it is (kernel).

    Of each node: idle boards, what started ones count in the need for CPU, its worth, what of it is in pieces
    that the typical request cannot use, and its level of CPU.
    """
    idle, cpu = idle_boards(at, node), at.cpu[node]
    for kind in range(p.rates.shape[0]):
        if idle >= p.reserve_size[kind] and cpu >= p.reserve_cpu[kind]:
            memo.figures[kind] += sign
    if sign < 0:
        return
    table, level, parts = p.alike[at.model[node]], level_of(cpu, p.levels, p.levels.shape[0]), 0.0
    for board in range(at.free.shape[1]):
        if 0 < at.free[node, board] < WHOLE:
            parts += whole_part(at.free[node, board])
    pieces = unusable(at, node, table, level, p)
    rough = pieces - WHOLE * idle * p.fits_many[table, level, idle]
    before = p.weights[0] * starved(cpu, idle + parts, p.knots)
    before -= p.weights[1] * (1.0 - p.churn[0]) * (idle > 0)
    memo.nodes[node, 0], memo.nodes[node, 1] = idle, parts
    memo.nodes[node, 2] = before + p.weights[2] / WHOLE * rough
    memo.nodes[node, 3], memo.nodes[node, 4] = pieces, level
