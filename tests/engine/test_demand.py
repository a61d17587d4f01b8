from __future__ import annotations

from collections import Counter

import pytest

from scheduler.engine.columns import Floats
from scheduler.engine.demand import Demand, Form, FreeCapacity
from scheduler.engine.learning.demand import ENOUGH, differ, priced, relearned, seen
from scheduler.engine.place.prices import piece_values

WHOLE = Form(0, 0, 1000, 1, "")
HALF = Form(0, 0, 500, 1, "")
AWKWARD = Form(0, 0, 810, 1, "")


IDLE = FreeCapacity(((1000, 100),), 0, 100_000)


def values_of(forms: dict[Form, int]) -> Floats:
    return piece_values(priced(Demand(1, tuple(forms.items())), IDLE).prices)


def test_a_piece_is_worth_what_fits_in_it() -> None:
    values = values_of({WHOLE: 1, HALF: 2})

    assert values[499] == 0
    assert values[500] == values[999] == pytest.approx(0.5)
    assert values[1000] == 1


def test_a_size_that_leaves_nothing_useful_is_worth_a_whole_board() -> None:
    values = values_of({AWKWARD: 3, WHOLE: 1})

    assert values[809] == 0
    assert values[810] == pytest.approx(1)


def test_without_requests_a_piece_is_worth_its_square() -> None:
    assert piece_values(())[250] == 0.0625


def asked(*forms: Form, over: int = 0) -> Counter[tuple[Form, bool]]:
    """The last requests, the first ``over`` of them over."""
    return Counter((form, at < over) for at, form in enumerate(forms))


def test_the_churn_is_the_part_of_the_demand_that_is_over() -> None:
    found = seen(1, asked(*[WHOLE] * 100, *[HALF] * 200, over=100))
    settled = seen(1, asked(*[WHOLE] * ENOUGH, over=ENOUGH))

    assert found is not None
    assert settled is not None
    assert (found.churn_milli, settled.churn_milli) == (500, 999)


def test_nothing_is_learned_from_a_few_requests() -> None:
    assert seen(1, asked(*[WHOLE] * (ENOUGH - 1))) is None


def test_twice_as_bulk_requests_are_a_new_version_however_alike_they_look() -> None:
    first = relearned(Demand(), 1, asked(*[WHOLE] * 30), IDLE)
    assert first is not None

    assert relearned(first, 2, asked(*[WHOLE] * 59), IDLE) is None
    again = relearned(first, 2, asked(*[WHOLE] * 60), IDLE)

    assert again is not None
    assert (first.requests, again.requests) == (30, 60)


def test_equal_mixes_are_learned_alike_whatever_their_number() -> None:
    few, many = seen(1, asked(*[WHOLE, HALF] * ENOUGH)), seen(1, asked(*[HALF, WHOLE] * ENOUGH * 3))

    assert few is not None
    assert many is not None
    assert few == many._replace(requests=few.requests)
    assert dict(few.forms) == {WHOLE: 5000, HALF: 5000}


def test_demands_differ_by_their_mix_or_by_what_is_over() -> None:
    halves, wholes = Demand(1, ((HALF, 10),), (), 0), Demand(2, ((WHOLE, 10),), (), 0)

    assert differ(halves, halves._replace(version=9)) == 0
    assert differ(halves, wholes) == 1
    assert differ(halves, halves._replace(churn_milli=400)) == 0.4


def test_the_first_requests_make_the_first_version_and_equal_ones_no_other() -> None:
    first = relearned(Demand(), 1, asked(*[WHOLE, HALF] * ENOUGH), IDLE)

    assert first is not None
    assert (first.version, first.used_milli) == (1, 0)
    assert relearned(first, 2, asked(*[WHOLE, HALF] * (2 * ENOUGH - 1)), IDLE) is None


def test_prices_are_renewed_when_the_fleet_has_filled() -> None:
    """Four tenths of every board are left: nobody can sell what a share of half a board leaves."""
    requests = asked(*[WHOLE, HALF] * ENOUGH)
    first = relearned(Demand(), 1, requests, IDLE)
    assert first is not None
    full = FreeCapacity(((400, 100),), 60_000, 100_000)

    second = relearned(first, 2, requests, full)

    assert second is not None
    assert (second.version, second.used_milli) == (2, 600)
    assert second.prices == ()  # nothing fits


def test_where_nearly_all_demand_is_over_a_fuller_fleet_changes_nothing() -> None:
    requests = asked(*[WHOLE] * 10 * ENOUGH, over=9 * ENOUGH)
    first = relearned(Demand(), 1, requests, IDLE)
    assert first is not None

    assert relearned(first, 2, requests, FreeCapacity(((1000, 40),), 60_000, 100_000)) is None


def test_solved_prices_travel_with_the_demand() -> None:
    found = seen(7, asked(*[WHOLE] * 150, *[HALF] * 77, *[AWKWARD] * 3))
    assert found is not None

    prices = dict(priced(found, IDLE).prices)

    assert set(prices) == {500, 810, 1000}
    assert prices[1000] > 0
