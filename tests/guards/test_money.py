"""Prices, months and ends: what the bill is made from cannot be moved afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from portal.billing.closing import close_period
from portal.billing.selectors import period_of
from portal.catalog.models import Rate
from portal.catalog.pricing import lowered, to_minor
from portal.catalog.services import set_rate
from portal.common.errors import Conflict, Invalid
from portal.fleet.models import DeviceModel
from portal.leases import lifecycle
from tests.portal.builders import H100, World

pytestmark = pytest.mark.django_db


def test_a_lowered_price_is_never_more_than_its_part() -> None:
    assert [lowered(price, 333) for price in (1, 1_000, 1_001, 3_600_001)] == [0, 333, 333, 1_198_800]


def test_a_price_is_never_set_for_what_is_billed_already(world: World) -> None:
    model, before = DeviceModel.objects.get(slug=H100), list(Rate.objects.values())

    for begins in (world.now - timedelta(days=1), world.now):
        with pytest.raises(Invalid) as refused:
            set_rate(model=model, micro_per_hour=1, starts_at=begins, actor=None, now=world.now)
        assert set(refused.value.fields) == {"starts_at"}

    assert list(Rate.objects.values()) == before


def test_a_month_that_runs_cannot_be_closed(world: World) -> None:
    period = period_of(world.now)

    with pytest.raises(Conflict, match="not over"):
        close_period(period=period, actor=None, now=period.ends_at - timedelta(seconds=1))

    period.refresh_from_db()
    assert period.state == "open"


def test_a_lease_found_late_ends_at_the_second_its_time_was_up(world: World) -> None:
    begin = datetime(2026, 5, 4, 9, tzinfo=UTC)
    lease = world.active(at=begin, duration_s=3600)

    assert lifecycle.expire_due(now=begin + timedelta(hours=1) - timedelta(seconds=1)) == 0
    assert lifecycle.expire_due(now=begin + timedelta(hours=1, seconds=40)) == 1

    lease.refresh_from_db()
    assert lease.ended_at == lease.not_after == begin + timedelta(hours=1)


def test_half_a_cent_is_rounded_up_and_less_is_not() -> None:
    assert [to_minor(Fraction(micro)) for micro in (4_999, 5_000, 14_999, 15_000)] == [
        0,
        10_000,
        10_000,
        20_000,
    ]
