from __future__ import annotations

from collections.abc import Iterable

import pytest

from scheduler.engine.demand import ENOUGH, Demand, differ, priced, seen
from scheduler.engine.place import prices
from scheduler.engine.place.prices import Pieces, piece_values, pieces_of, solve
from scheduler.engine.place.statistics import Form

WHOLE = Form(0, 0, 1000, 1, "")
HALF = Form(0, 0, 500, 1, "")
AWKWARD = Form(0, 0, 810, 1, "")


def test_the_usual_prices_are_those_that_solving_gives() -> None:
    usual = Demand()
    pieces = pieces_of(usual.counts())

    # Prices of equal worth may differ between solvers; what they add up to may not.
    assert worth(pieces, usual.prices) == pytest.approx(worth(pieces, solve(pieces)))


def worth(pieces: Pieces, found: Iterable[tuple[int, float]]) -> float:
    price = dict(found)
    return sum(amount * price[size] for size, amount in pieces)


def test_a_piece_is_worth_what_fits_in_it() -> None:
    values = piece_values(pieces_of({WHOLE: 1, HALF: 2}))

    assert values[499] == 0
    assert values[500] == values[999] == pytest.approx(0.5)
    assert values[1000] == 1


def test_a_size_that_leaves_nothing_useful_is_worth_a_whole_board() -> None:
    values = piece_values(pieces_of({AWKWARD: 3, WHOLE: 1}))

    assert values[809] == 0
    assert values[810] == pytest.approx(1)


def test_without_requests_a_piece_is_worth_its_size() -> None:
    assert piece_values(())[250] == 0.25


def going(forms: list[Form]) -> list[tuple[Form, bool]]:
    return [(form, False) for form in forms]


def test_the_churn_is_the_part_of_the_demand_that_is_over() -> None:
    found = seen(1, [(WHOLE, True)] * 100 + [(HALF, False)] * 200)
    settled = seen(1, [(WHOLE, True)] * ENOUGH)

    assert found is not None
    assert settled is not None
    assert (found.churn_milli, settled.churn_milli) == (500, 999)


def test_nothing_is_learned_from_a_few_requests() -> None:
    assert seen(1, going([WHOLE] * (ENOUGH - 1))) is None


def test_equal_mixes_are_learned_alike_whatever_their_number() -> None:
    few, many = seen(1, going([WHOLE, HALF] * ENOUGH)), seen(1, going([HALF, WHOLE] * ENOUGH * 3))

    assert few == many
    assert few is not None
    assert dict(few.forms) == {WHOLE: 500, HALF: 500}


def test_demands_differ_by_their_mix_or_by_what_is_over() -> None:
    halves, wholes = Demand(1, ((HALF, 10),), (), 0), Demand(2, ((WHOLE, 10),), (), 0)

    assert differ(halves, halves._replace(version=9)) == 0
    assert differ(halves, wholes) == 1
    assert differ(halves, halves._replace(churn_milli=400)) == 0.4


def test_solved_prices_travel_with_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(7, going([WHOLE] * 150 + [HALF] * 77 + [AWKWARD] * 3))
    assert found is not None
    found = priced(found)
    monkeypatch.setattr(prices, "_duals", lambda *_: pytest.fail("solved again"))
    piece_values.cache_clear()

    values = piece_values(pieces_of(found.counts()))

    assert values[1000] == 1
