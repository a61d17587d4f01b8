"""What a piece of a GPU is worth to the requests that come.

Sizes are thousandths of one board; a request for several boards counts as that many whole pieces. The price
of each size comes from a program over what is left (``place.shadow_prices``) and travels with the demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np

from scheduler.engine.columns import WHOLE, Floats
from scheduler.engine.demand import Form

Pieces = tuple[tuple[int, float], ...]


def piece_values(prices: Sequence[tuple[int, float]]) -> Floats:
    """Value of each free amount 0..1000 of one board, as a share of a whole board's value.

    An amount is worth the most valuable multiset of sizes, each with its price, that fits in it. Without
    prices that is its square, so that shares gather on few boards.
    """
    if prices:
        sizes, worth = zip(*sorted(prices), strict=True)
        values, _ = best_fillings(sizes, worth)
        if values[WHOLE] > 0:
            return np.asarray(values / values[WHOLE], np.float64)
    return np.asarray((np.arange(WHOLE + 1) / WHOLE) ** 2, np.float64)


def pieces_of(forms: Mapping[Form, int]) -> Pieces:
    """Expected pieces of each size per board of demand, the smallest size first."""
    gpu = {form: number for form, number in forms.items() if form.gpu}
    demand = sum(form.gpu * number for form, number in gpu.items()) / WHOLE or 1.0
    pieces: dict[int, float] = {}
    for form, number in gpu.items():
        size = form.milli if form.boards == 1 else WHOLE
        pieces[size] = pieces.get(size, 0.0) + number * form.boards / demand
    return tuple(sorted(pieces.items()))


def best_fillings(sizes: Sequence[int], prices: Sequence[float]) -> tuple[Floats, list[int]]:
    """Most value that fits in each amount 0..1000, and the size added last to reach it (-1: none).

    ``sizes`` rise. Unbounded knapsack in steps of their common divisor.
    """
    step = gcd(*sizes)
    steps = WHOLE // step
    best, last = [0.0] * (steps + 1), [-1] * (steps + 1)
    for at in range(1, steps + 1):
        best[at] = best[at - 1]
        for kind, size in enumerate(sizes):
            if size > at * step:
                break
            here = best[at - size // step] + prices[kind]
            if here > best[at] + 1e-9:
                best[at], last[at] = here, kind
    whole = np.minimum(np.arange(WHOLE + 1) // step, steps)
    return np.array(best)[whole], [last[at] for at in whole]
