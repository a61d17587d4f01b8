"""A price tried on last month: exact for slices, preemptible leases, discounts and refunds, and nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, UsageRecord
from portal.billing.models_refunds import RefundCause, RefundRule
from portal.billing.price_effect import PriceEffect, effect_of_price
from portal.catalog.models import Flavor, Rate
from portal.fleet.models import DeviceModel
from tests.portal.builders import H100, World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))


def tried(world: World, factor: int = 2) -> PriceEffect:
    model = DeviceModel.objects.get(slug=H100)
    price = Rate.objects.get(device_model=model).micro_per_hour
    return effect_of_price(model=model, micro_per_hour=factor * price, now=world.now)


def test_twice_the_price_is_twice_the_bill_of_last_month_alone(world: World) -> None:
    world.ended("bob", "h100-3g-40gb", seconds=7200, at=FEBRUARY, duration_s=9000)
    world.ended("charlie", "h100", seconds=5400, at=FEBRUARY, duration_s=7200)
    world.ended("charlie", "l40s-quarter", seconds=3600, at=FEBRUARY + timedelta(hours=2))
    world.ended("bob", "h100", seconds=3600, at=world.now - timedelta(days=1))
    meter_all(now=world.now)
    hours = {"perception": 2 * 0.5, "language": 1.5}
    price = Rate.objects.get(device_model__slug=H100).micro_per_hour

    effect = tried(world)

    assert str(effect.period) == "2026-02"
    assert [team.slug for team in effect.teams] == ["language", "perception"], "most affected first"
    for team in effect.teams:
        assert team.charged_micro == pytest.approx(hours[team.slug] * price, abs=5_000)
        assert team.then_micro == pytest.approx(2 * hours[team.slug] * price, abs=5_000)
    assert effect.whole.more_micro == sum(team.more_micro for team in effect.teams)


def test_what_lowered_the_price_lowers_the_new_one_too(world: World) -> None:
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    world.ended("bob", "h100", seconds=3600, at=FEBRUARY, is_preemptible=True)
    meter_all(now=world.now)
    price = Rate.objects.get(device_model__slug=H100).micro_per_hour

    (team,) = tried(world, factor=3).teams

    assert team.charged_micro == pytest.approx(0.6 * price, abs=5_000)
    assert team.then_micro == pytest.approx(3 * 0.6 * price, abs=5_000)


def test_what_was_refunded_stays_refunded(world: World) -> None:
    with connection.cursor() as cursor:  # a rule of the past, which nothing else can make
        cursor.execute("SET LOCAL session_replication_role = replica")
        RefundRule.objects.create(
            cause=RefundCause.EARLY_RELEASE, credit_milli=1000, valid=(FEBRUARY, None), created_at=FEBRUARY
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    world.ended("bob", "h100", seconds=3600, at=FEBRUARY, duration_s=7200)
    meter_all(now=world.now)

    (team,) = tried(world).teams

    assert (team.charged_micro, team.then_micro) == (0, 0)


def test_nothing_is_written_and_no_month_is_opened(world: World) -> None:
    before = list(BillingPeriod.objects.values_list("month", flat=True))

    effect = tried(world)

    assert effect.teams == []
    assert effect.whole.more_micro == 0
    assert list(BillingPeriod.objects.values_list("month", flat=True)) == before
    assert not UsageRecord.objects.exists()
