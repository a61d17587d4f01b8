from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.range import TimestamptzRange

from portal.catalog.models import Rate
from portal.catalog.pricing import MINOR_MICRO, apportion, cut, exact_micro, quote, to_minor
from portal.common.errors import Conflict
from tests.portal.builders import World

AMOUNTS = st.lists(st.fractions(min_value=0, max_value=10**12), max_size=40)
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@given(AMOUNTS)
def test_lines_add_up_to_the_rounded_total_and_none_is_off_by_a_cent(parts: list[Fraction]) -> None:
    lines = apportion(parts)

    assert sum(lines) == to_minor(sum(parts, Fraction(0)))
    assert all(
        line % MINOR_MICRO == 0 and abs(line - part) < MINOR_MICRO
        for line, part in zip(lines, parts, strict=True)
    )


@given(st.integers(0, 10**12), st.integers(0, 10**9))
def test_a_price_split_in_two_stretches_is_the_same_price(quantity: int, rate: int) -> None:
    part = quantity // 3

    assert exact_micro(part, rate) + exact_micro(quantity - part, rate) == exact_micro(quantity, rate)


def rate(begin: datetime, end: datetime | None, price: int) -> Rate:
    return Rate(micro_per_hour=price, valid=TimestamptzRange(begin, end))


def test_an_interval_is_cut_where_the_price_changes() -> None:
    change = DAY + timedelta(hours=2)
    rates = [rate(DAY, change, 100), rate(change, None, 50)]

    parts = cut(rates, DAY + timedelta(hours=1), DAY + timedelta(hours=5))

    assert [(p.seconds, p.rate.micro_per_hour) for p in parts] == [(3600, 100), (10_800, 50)]


def test_time_without_a_price_is_refused_instead_of_free() -> None:
    rates = [rate(DAY, DAY + timedelta(hours=1), 100)]

    with pytest.raises(Conflict, match="No rate"):
        cut(rates, DAY, DAY + timedelta(hours=2))


@pytest.mark.django_db
def test_a_quote_is_share_times_time_times_rate(world: World) -> None:
    flavor = world.flavors["h100-1g-10gb"]

    price = quote(flavor, team_id=0, count=2, duration_s=7200, starts_at=world.now)

    assert price.amount_micro == to_minor(Fraction(flavor.share_milli * 2 * 7200 * 3_600_000, 3_600_000))
    assert price.currency == "EUR"
