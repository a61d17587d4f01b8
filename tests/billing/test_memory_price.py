"""A price of device memory beside that of the device: one hourly price of a flavor, from quote to invoice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.price_effect import effect_of_price
from portal.billing.selectors import cost_and_price, period_of
from portal.catalog.models import Flavor, Rate
from portal.catalog.pricing import exact_micro, quote
from portal.catalog.services import move_rate, set_rate, withdraw_rate
from portal.common.errors import Invalid
from portal.common.invariants import broken
from portal.common.sql import execute, fetch
from portal.fleet.models import DeviceModel
from portal.leases import lifecycle
from portal.web.leases.receipt import receipt_of
from tests.portal.builders import H100, PRICES, World, build_world

NOW = datetime(2026, 3, 10, 9, tzinfo=UTC)
LATER = datetime(2099, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
PRICE, GIB = PRICES["h100-80gb"], 10_001  # a price of memory that does not divide


@pytest.fixture
def world(db: None) -> World:
    found = build_world(now=NOW)
    with connection.cursor() as cursor:  # as if finance had set it before every lease
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE catalog_rate SET micro_per_gib_hour = %s", [GIB])
        cursor.execute("SET LOCAL session_replication_role = origin")
    return found


@transaction.atomic
def _write_instead(row: UsageRecord, values: dict[str, Any]) -> None:
    UsageRecord.objects.filter(pk=row.pk).delete()
    UsageRecord(**values).save(force_insert=True)


@given(st.integers(0, 10**9), st.integers(1, 300_000), st.integers(1, 1000), st.integers(1, 10**7))
def test_a_flavor_pays_its_share_and_its_gib_to_a_millionth_of_an_hour(
    per_gib: int, memory_mib: int, share: int, seconds: int
) -> None:
    rate = Rate(micro_per_hour=PRICE, micro_per_gib_hour=per_gib)
    exact = exact_micro(share * seconds, rate.price_of(Flavor(memory_mib=memory_mib, share_milli=share)))
    due = Fraction(seconds, 3600) * (Fraction(share * PRICE, 1000) + Fraction(memory_mib, 1024) * per_gib)

    assert 0 <= due - exact < Fraction(share * seconds, 3_600_000)


def test_the_database_works_out_the_same_price(world: World) -> None:
    rows = fetch(
        "SELECT r.id, f.id, catalog_price_of(r, f) FROM catalog_rate r JOIN catalog_flavor f"
        " ON f.device_model_id = r.device_model_id",
        [],
    )
    rates, flavors = Rate.objects.in_bulk(), Flavor.objects.in_bulk()
    assert len(rows) >= len(flavors) > 3
    assert all(rates[rate].price_of(flavors[flavor]) == price for rate, flavor, price in rows)


def test_what_is_quoted_is_billed_and_each_place_names_the_memory(world: World, client: Client) -> None:
    flavor, team = Flavor.objects.get(slug="h100-1g-10gb"), world.team("perception")
    price = quote(flavor, team_id=team.pk, count=2, duration_s=3600, starts_at=NOW - 2 * HOUR)
    lease = world.ended("bob", "h100-1g-10gb", count=2, seconds=3600, at=NOW - 2 * HOUR, duration_s=3600)
    running = world.active("bob", "h100", at=NOW - HOUR / 2, duration_s=7200)

    meter_all(now=NOW)

    (row,) = UsageRecord.objects.filter(lease=lease)
    memory = Fraction(2 * flavor.memory_mib * GIB, 1024)
    exact = exact_micro(row.share_milli_seconds, row.micro_per_hour)
    assert 0 <= 2 * Fraction(flavor.share_milli * PRICE, 1000) + memory - exact < 1
    assert abs(price.amount_micro - exact) <= 5000
    assert price.hourly_micro == int(exact)
    whole = PRICE + GIB * 80 * running.flavor.memory_mib // 81_920
    assert cost_and_price(running, now=NOW) == (whole // 2, whole, "EUR")
    assert flavor.memory_mib == 9984
    assert "in it 19.5 GiB × 0.010001 EUR/h" in receipt_of(lease).lines[0].detail
    client.force_login(world.user("finance"))
    assert b"per GiB of memory" in client.get(reverse("web:rates")).content
    feed = client.get(f"/api/v1/leases/{lease.uid}/usage/").json()["results"]
    assert [one["price_per_gib_hour"]["amount"] for one in feed] == ["0.010001"]
    offered = {one["slug"]: one for one in client.get("/api/v1/flavors/").json()["results"]}
    assert offered["h100"]["price_per_hour"]["amount"] == f"{whole / 1_000_000:.6f}"
    assert broken() == []

    lifecycle.expire_due(now=NOW + 2 * HOUR)
    close_period(period=period_of(NOW), actor=None, now=NOW + timedelta(days=30))
    assert [
        check for check in verify_books(period_of(NOW), now=NOW + timedelta(days=30)) if check.wrong
    ] == []


def test_neither_usage_nor_price_nor_size_can_say_otherwise_afterwards(world: World) -> None:
    lease = world.ended("bob", "h100", seconds=600, at=NOW - HOUR, duration_s=3600)
    meter_all(now=NOW)
    row = UsageRecord.objects.get(lease=lease)
    stored: dict[str, Any] = {f.attname: getattr(row, f.attname) for f in row._meta.fields if f.name != "id"}
    for price in (PRICE, row.micro_per_hour - 1, row.micro_per_hour + 1):
        with pytest.raises(DatabaseError):
            _write_instead(row, stored | {"micro_per_hour": price})
    for sql in (
        "UPDATE catalog_rate SET micro_per_gib_hour = micro_per_gib_hour + 1",
        "UPDATE catalog_flavor SET memory_mib = memory_mib + 1024 WHERE slug = 'h100'",
        "UPDATE catalog_flavor SET share_milli = 999 WHERE slug = 'h100'",
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            execute(sql)
    assert execute("UPDATE catalog_flavor SET memory_mib = memory_mib + 1 WHERE slug = 'l40s-quarter'") == 1


def test_a_price_of_memory_is_planned_moved_tried_and_refused(world: World) -> None:
    model, finance = DeviceModel.objects.get(slug=H100), world.user("finance")
    set_ = {"model": model, "actor": finance, "now": NOW, "micro_per_hour": PRICE}
    for absurd in (-1, 10**9 + 1):
        with pytest.raises(Invalid) as refusal:
            set_rate(**set_, micro_per_gib_hour=absurd, starts_at=LATER)
        assert set(refusal.value.fields) == {"per_gib"}
    planned = set_rate(**set_, micro_per_gib_hour=2 * GIB, starts_at=LATER)
    moved = move_rate(rate_id=planned.pk, starts_at=LATER + HOUR, actor=finance, now=NOW)
    assert moved.micro_per_gib_hour == 2 * GIB
    withdraw_rate(rate_id=moved.pk, actor=finance, now=NOW)

    lease = world.ended("bob", "h100", seconds=3600, at=datetime(2026, 2, 5, 9, tzinfo=UTC), duration_s=3600)
    meter_all(now=NOW)
    tried = effect_of_price(model=model, micro_per_hour=PRICE, micro_per_gib_hour=2 * GIB, now=NOW).whole
    gib = Fraction(lease.flavor.memory_mib, 1024)
    assert abs(tried.then_micro - PRICE - 2 * GIB * gib) <= 5001
    assert abs(tried.charged_micro - PRICE - GIB * gib) <= 5001
