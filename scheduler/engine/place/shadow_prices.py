"""What pieces of boards are worth to the requests still to come, given what is left: prices renewed on the way.

Some residues wait for partners and others are more than anybody will ask for; a program prices what is
really there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from scheduler.engine.columns import WHOLE, Floats
from scheduler.engine.place.prices import best_fillings

MOST_ROUNDS = 60
SAME = 0.1  # thousandths of a board: a filling that is worth so little more changes nothing

Filling = tuple[int, tuple[int, ...]]  # a free amount, and how many pieces of each size go into it


class ShadowPrices(NamedTuple):
    """Value of each free amount 0..1000 of one board as a share of a whole board's, and price of each size.

    A price is what the room for one piece could earn otherwise, in thousandths of a board.
    """

    values: Floats
    prices: list[float]


def shadow_prices(
    sizes: Sequence[int], coming: Sequence[float], free: Mapping[int, int]
) -> ShadowPrices | None:
    """What room is worth now; None when nothing fits.

    ``sizes`` rise; ``coming`` is how many pieces of each are still expected, ``free`` how many boards have
    each free amount. Maximises the amount placed over fillings of what is free (column generation; duals
    by HiGHS). Nobody is refused while there is room, so of two sizes the smaller is accepted at least as
    long: accepted shares fall with size. An amount is worth the most valuable multiset that fits in it.
    """
    amounts = sorted(amount for amount in free if amount >= sizes[0]) if sizes else []
    if not amounts:
        return None
    fillings = _likely(sizes, amounts)
    known = set(fillings)
    values, prices = np.zeros(WHOLE + 1), [0.0] * len(sizes)
    for _ in range(MOST_ROUNDS):
        prices, rents = _duals(sizes, coming, [(amount, free[amount]) for amount in amounts], fillings)
        values, chosen = best_fillings(sizes, prices)
        more = [
            filling
            for amount, rent in zip(amounts, rents, strict=True)
            if values[amount] > rent + SAME
            and (filling := (amount, _read_back(sizes, chosen, amount))) not in known
        ]
        if not more:
            break
        known.update(more)
        fillings += more
    return ShadowPrices(values / values[WHOLE], prices) if values[WHOLE] > 0 else None


def _likely(sizes: Sequence[int], amounts: Sequence[int]) -> list[Filling]:
    """Fillings to start from: each size alone as often as it fits, and once with the biggest that still fit."""
    found: dict[Filling, None] = {}
    for amount in amounts:
        for first in range(len(sizes)):
            if sizes[first] > amount:
                break
            alone, mixed, rest = [0] * len(sizes), [0] * len(sizes), amount - sizes[first]
            alone[first], mixed[first] = amount // sizes[first], 1
            for other in reversed(range(len(sizes))):
                mixed[other] += rest // sizes[other]
                rest %= sizes[other]
            found[amount, tuple(alone)] = found[amount, tuple(mixed)] = None
    return list(found)


def _duals(
    sizes: Sequence[int],
    coming: Sequence[float],
    free: Sequence[tuple[int, int]],
    fillings: Sequence[Filling],
) -> tuple[list[float], list[float]]:
    """Price of each size, and of one board with each free amount."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    count, rows = len(sizes), {amount: len(sizes) + at for at, (amount, _) in enumerate(free)}
    cells = [(at, at, number) for at, number in enumerate(coming)]
    for column, (amount, pieces) in enumerate(fillings, count):
        cells += [(at, column, -float(number)) for at, number in enumerate(pieces) if number]
        cells.append((rows[amount], column, 1.0))
    falling = count - 1
    for at in range(falling):
        row = count + len(free) + at
        cells += [(row, at, -1.0), (row, at + 1, 1.0)]
    at_row, at_column, value = zip(*cells, strict=True)
    limits = [0.0] * count + [float(number) for _, number in free] + [0.0] * falling
    gain = [-number * size for number, size in zip(coming, sizes, strict=True)] + [0.0] * len(fillings)
    answer = linprog(
        gain,
        A_ub=csr_array((value, (at_row, at_column)), shape=(len(limits), len(gain))),
        b_ub=limits,
        bounds=[(0, 1)] * count + [(0, None)] * len(fillings),
        method="highs",
    )
    duals = [max(0.0, -float(one)) for one in answer.ineqlin.marginals]
    return duals[:count], duals[count : count + len(free)]


def _read_back(sizes: Sequence[int], last: Sequence[int], amount: int) -> tuple[int, ...]:
    counts, step = [0] * len(sizes), gcd(*sizes)
    amount -= amount % step
    while amount > 0:
        if last[amount] < 0:
            amount -= step
        else:
            counts[last[amount]] += 1
            amount -= sizes[last[amount]]
    return tuple(counts)
