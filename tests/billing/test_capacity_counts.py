"""A large month's capacity is counted by the worker, and pages show that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from portal.billing.capacity_counts import COUNTED_EVERY, count_capacity, counted_capacity
from portal.billing.closing import close_period
from portal.billing.conservation import capacity_of
from portal.billing.metering import meter_all
from portal.billing.models import CapacityCount
from portal.billing.periods import period_of
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def month() -> World:
    world = build_world(NOW)
    world.ended("bob", seconds=600)
    meter_all(now=world.now)
    return world


@pytest.fixture
def large(month: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The same month where one record is more than a page counts."""
    monkeypatch.setattr("portal.billing.capacity_counts.MOST_AT_ONCE", 0)
    return month


def page(world: World) -> str:
    browser = Client()
    browser.force_login(world.user("finance"))
    return browser.get("/finance/months/2026-01/capacity/").content.decode()


def test_small_month_is_counted_at_once_and_never_kept(month: World) -> None:
    counted = counted_capacity(period_of(month.now), now=month.now)

    assert counted is not None
    assert counted.devices == capacity_of(period_of(month.now), now=month.now)
    assert count_capacity(now=month.now) is None
    assert not CapacityCount.objects.exists()


def test_large_month_is_unknown_until_it_is_counted_and_then_the_same(large: World) -> None:
    period = period_of(large.now)
    assert counted_capacity(period, now=large.now) is None
    assert "It is being counted" in page(large)

    assert count_capacity(now=large.now) == period

    counted = counted_capacity(period, now=large.now + MINUTE)
    assert counted is not None
    assert counted.at == large.now
    assert counted.devices == capacity_of(period, now=large.now)
    assert sum(one.account.difference for one in counted.devices) == 0
    assert "Counted at 2026-01-10 12:00" in page(large)


def test_open_month_is_counted_again_after_an_hour_and_a_closed_one_once_more(large: World) -> None:
    count_capacity(now=large.now)
    assert count_capacity(now=large.now + COUNTED_EVERY - MINUTE) is None

    over = datetime(2026, 2, 2, tzinfo=UTC)
    assert count_capacity(now=over) == period_of(large.now)
    close_period(period=period_of(large.now), actor=None, now=over + MINUTE)

    assert count_capacity(now=over + 2 * MINUTE) == period_of(large.now)
    assert count_capacity(now=over + 5 * COUNTED_EVERY) is None


def test_api_says_that_a_large_month_is_still_to_be_counted(large: World) -> None:
    browser = Client()
    browser.force_login(large.user("finance"))

    answer = browser.get("/api/v1/periods/2026-01/capacity/").json()

    assert answer == {"month": "2026-01", "counted_at": None, "total": None, "devices": []}
    assert browser.get("/finance/waste/").status_code in (200, 404)
