"""What a piece of a GPU is worth to the requests that come: dual prices of a covering program.

Sizes are thousandths of one board; a request for several boards counts as that many whole pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from scheduler.engine.columns import WHOLE, Floats
from scheduler.engine.place.statistics import Form

MOST_ROUNDS = 200
MOST_REMEMBERED = 64

Pieces = tuple[tuple[int, float], ...]
_SOLVED: dict[Pieces, dict[int, float]] = {}


@lru_cache(maxsize=64)
def piece_values(demand: Pieces) -> Floats:
    """Value of each free amount 0..1000 of one board, as a share of a whole board's value.

    ``demand`` pairs each size with the expected pieces of it per board of demand. Solves by column generation:
    minimise the boards opened over fillings of one board (multisets of sizes with sum at most 1000) so
    that every size is covered as demanded. The duals price the sizes; an amount is worth the most
    valuable multiset that fits in it (unbounded knapsack). Without demand the value is proportional.
    """
    pieces = {size: wanted for size, wanted in demand if 0 < size <= WHOLE and wanted > 0}
    sizes = sorted(pieces)
    if not sizes:
        return np.arange(WHOLE + 1) / WHOLE
    known = _SOLVED.get(demand)
    prices = [known[size] for size in sizes] if known else _duals(sizes, [pieces[size] for size in sizes])
    values = _best_fillings(sizes, prices)[0]
    return np.array(values) / values[WHOLE]


def pieces_of(forms: Mapping[Form, int]) -> Pieces:
    """Expected pieces of each size per board of demand: what ``piece_values`` takes."""
    gpu = {form: number for form, number in forms.items() if form.gpu}
    demand = sum(form.gpu * number for form, number in gpu.items()) / WHOLE or 1.0
    pieces: dict[int, float] = {}
    for form, number in gpu.items():
        size = form.milli if form.boards == 1 else WHOLE
        pieces[size] = pieces.get(size, 0.0) + number * form.boards / demand
    return tuple(sorted(pieces.items()))


def solve(pieces: Pieces) -> tuple[tuple[int, float], ...]:
    """The price of each size, for ``remember`` elsewhere: solving needs a library that takes a second to load."""
    wanted = [(size, amount) for size, amount in pieces if 0 < size <= WHOLE and amount > 0]
    sizes = [size for size, _ in wanted]
    return tuple(zip(sizes, _duals(sizes, [amount for _, amount in wanted]), strict=True)) if wanted else ()


def remember(pieces: Pieces, solved: Iterable[tuple[int, float]]) -> None:
    """Take the prices of these pieces as solved before, instead of solving them here."""
    found = dict(solved)
    if len(_SOLVED) > MOST_REMEMBERED:
        _SOLVED.clear()
    if all(found.get(size, -1.0) >= 0 for size, amount in pieces if 0 < size <= WHOLE and amount > 0):
        _SOLVED[pieces] = found


def _duals(sizes: Sequence[int], wanted: Sequence[float]) -> list[float]:
    from scipy.optimize import linprog

    fillings = [tuple(WHOLE // s if s == size else 0 for s in sizes) for size in sizes]
    prices: list[float] = []
    for _ in range(MOST_ROUNDS):
        answer = linprog(
            np.ones(len(fillings)), A_ub=-np.array(fillings, float).T, b_ub=-np.array(wanted), method="highs"
        )
        prices = [max(0.0, -float(m)) for m in answer.ineqlin.marginals]
        values, last = _best_fillings(sizes, prices)
        if values[WHOLE] <= 1 + 1e-9:
            break
        fillings.append(_read_back(sizes, last))
    return prices


def _best_fillings(sizes: Sequence[int], prices: Sequence[float]) -> tuple[list[float], list[int]]:
    """Most value that fits in each amount, and which size was added last to reach it (-1: none)."""
    values, last = [0.0] * (WHOLE + 1), [-1] * (WHOLE + 1)
    for amount in range(1, WHOLE + 1):
        values[amount] = values[amount - 1]
        for at, size in enumerate(sizes):
            if size > amount:
                break
            here = values[amount - size] + prices[at]
            if here > values[amount] + 1e-12:
                values[amount], last[amount] = here, at
    return values, last


def _read_back(sizes: Sequence[int], last: Sequence[int]) -> tuple[int, ...]:
    counts, amount = [0] * len(sizes), WHOLE
    while amount > 0:
        if last[amount] < 0:
            amount -= 1
            continue
        counts[last[amount]] += 1
        amount -= sizes[last[amount]]
    return tuple(counts)
