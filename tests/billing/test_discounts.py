"""Discounts: what leases pay less, cut to the second, by rules that nobody changes once they have begun."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.selectors import cost_so_far, costs_and_prices, invoice_view, period_of
from portal.budgets.periods import stretch_of
from portal.catalog.discounts import (
    DiscountHours,
    DiscountWanted,
    add_discount,
    discounts_over,
    end_discount,
)
from portal.catalog.models import Discount, Flavor
from portal.catalog.pricing import quote
from portal.common.errors import Conflict, Invalid, NotFound
from portal.common.invariants import broken
from portal.common.months import Months
from portal.common.sql import execute
from portal.leases.budget_standing import standings
from portal.leases.lifecycle import expire_due
from portal.web.leases.receipt import receipt_of
from tests.portal.builders import World, build_world

NOW = datetime(2026, 3, 10, 18, tzinfo=UTC)  # 19:00 in Berlin
BEGIN = datetime(2026, 2, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NIGHT = {"days": [0, 1, 2, 3, 4, 5, 6], "from_minute": 1200, "to_minute": 360, "zone": "Europe/Berlin"}


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=NOW)


def discount(name: str, percent: int, **more: object) -> Discount:
    """Set a discount that has been in force since before every lease of these tests."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        made = Discount.objects.create(
            name=name, off_milli=percent * 10, created_at=BEGIN, **({"valid": (BEGIN, None)} | more)
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    return made


@transaction.atomic
def _write_instead(row: UsageRecord, wrong: Discount | None, micro_per_hour: int) -> None:
    UsageRecord.objects.filter(pk=row.pk).delete()
    row.discount, row.micro_per_hour = wrong, micro_per_hour
    row.save(force_insert=True)


def test_a_lease_pays_less_from_the_second_on_at_which_a_discount_holds(world: World) -> None:
    night, team = discount("Night", 50, **NIGHT), world.team("perception")
    discount("Others", 90, team=world.team("robotics"))
    discount("Contract", 10, team=team.parent)
    discount("Spare", 25, only_preemptible=True)
    flavor = Flavor.objects.get(slug="h100")
    asked = quote(flavor, team_id=team.pk, count=1, duration_s=7200, starts_at=NOW)

    lease = world.active("bob", "h100", at=NOW, duration_s=7200)
    month = stretch_of(date(2026, 3, 1), date(2026, 4, 1), Months())
    (before,) = standings([(team.pk, month)], now=NOW + HOUR / 2)
    so_far = cost_so_far([lease], now=NOW + 3 * HOUR / 2)[lease.pk]
    hourly = [costs_and_prices([lease], now=NOW + part * HOUR)[lease.pk][1] for part in (0, 1)]
    expire_due(now=NOW + 3 * HOUR)
    meter_all(now=NOW + 3 * HOUR)

    # Until 20:00 in Berlin the contract's tenth is the largest that applies, from then on the night's half.
    rows = UsageRecord.objects.filter(lease=lease).order_by("span").select_related("discount")
    assert [(row.seconds, row.micro_per_hour, row.discount.name) for row in rows] == [
        (3600, 3_240_000, "Contract"), (3600, 1_800_000, "Night"),
    ]  # fmt: skip
    assert (asked.amount_micro, asked.usual_micro) == (5_040_000, 7_200_000)
    assert [one.name for one in asked.discounts] == ["Contract", "Night"]
    assert (before.spent, before.held) == (1_620_000, 3_420_000)
    assert (so_far, hourly) == (3_240_000 + 900_000, [3_240_000, 1_800_000])
    (after,) = standings([(team.pk, month)], now=NOW + 3 * HOUR)
    assert (after.spent, after.held) == (5_040_000, 0)
    lines = invoice_view(team, period_of(NOW), now=NOW + 3 * HOUR).lines
    assert sorted(line.amount_micro for line in lines) == [1_800_000, 3_240_000]
    lease.refresh_from_db()
    words = [line.detail.rpartition(" · ")[2] for line in receipt_of(lease).lines]
    assert words == ["Contract, 10 %", f"{night.name}, 50 %"]

    later = datetime(2026, 4, 3, tzinfo=UTC)
    close_period(period=period_of(NOW), actor=None, now=later)
    assert all(not check.wrong for check in verify_books(period_of(NOW), now=later))
    assert not broken()


def test_a_preemptible_lease_has_the_discount_for_those_on_what_it_pays(world: World) -> None:
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    discount("Spare", 25, only_preemptible=True)

    lease = world.ended("bob", "h100", seconds=3600, is_preemptible=True)
    meter_all(now=NOW)

    assert UsageRecord.objects.get(lease=lease).micro_per_hour == 3_600_000 * 600 // 1000 * 750 // 1000


def test_the_database_refuses_usage_without_its_discount_and_with_another(world: World) -> None:
    night, other = discount("Night", 50), discount("Others", 90, team=world.team("robotics"))
    lease = world.ended(seconds=600)
    meter_all(now=NOW)
    row = UsageRecord.objects.get(lease=lease)
    assert row.discount == night

    for wrong, part in ((None, 1000), (other, 100)):
        with pytest.raises(IntegrityError, match="largest discount"):
            _write_instead(row, wrong, 3_600_000 * part // 1000)
    for attack in (
        "UPDATE catalog_discount SET off_milli = 1 WHERE id = %s",
        "UPDATE catalog_discount SET team_id = NULL, zone = 'Asia/Tokyo' WHERE id = %s",
        "UPDATE catalog_discount SET valid = tstzrange(lower(valid), lower(valid) + interval '1 hour') WHERE id = %s",
        "DELETE FROM catalog_discount WHERE id = %s",
    ):
        with pytest.raises(DatabaseError, match="only be given an end"), transaction.atomic():
            execute(attack, [night.pk])
    with pytest.raises(DatabaseError, match="time zone"), transaction.atomic():
        Discount.objects.create(name="x", off_milli=1, zone="Nowhere", created_at=NOW,
                                valid=(datetime(2900, 1, 1, tzinfo=UTC), None))  # fmt: skip
    with pytest.raises(DatabaseError, match="in the future"), transaction.atomic():
        Discount.objects.create(name="x", off_milli=1, created_at=NOW, valid=(BEGIN, None))
    execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(DatabaseError, match="never emptied"), transaction.atomic():
        execute("TRUNCATE catalog_discount CASCADE")
    with pytest.raises(DatabaseError, match="who pays for what"), transaction.atomic():
        execute("UPDATE leases_lease SET is_preemptible = NOT is_preemptible WHERE id = %s", [lease.pk])


@pytest.mark.django_db
def test_a_discount_begins_and_ends_ahead_and_is_locked_in_between(world: World) -> None:
    now = datetime.now(UTC)
    finance = world.user("finance")
    hours = DiscountHours((0,), 1200, 360, "Mars/Phobos")
    with pytest.raises(Invalid) as refused:
        add_discount(name=" ", off_milli=0, hours=hours, starts_at=now, actor=finance, now=now)
    assert set(refused.value.fields) == {"name", "percent", "zone", "starts_at"}

    soon = add_discount(name="Soon", off_milli=100, actor=finance, now=now)
    far = add_discount(name="Far", off_milli=100, starts_at=now + 9 * HOUR, actor=finance, now=now)
    assert soon.valid.lower > now + timedelta(seconds=59)

    assert end_discount(key=far.pk, actor=finance, now=now) is None
    ended = end_discount(key=soon.pk, actor=finance, now=now + timedelta(seconds=30))
    assert ended is not None
    assert ended.valid.upper >= ended.valid.lower + timedelta(seconds=60)
    with pytest.raises(Conflict):
        end_discount(key=soon.pk, actor=finance, now=now + HOUR)
    with pytest.raises(NotFound):
        end_discount(key=far.pk, actor=finance, now=now)


# Nights in which Berlin's clocks go forward and back, and a plain one.
NIGHTS = [datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC), NOW]


@given(
    st.sampled_from(NIGHTS), st.integers(0, 23), st.integers(0, 24), st.sets(st.integers(0, 6), min_size=1)
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_hours_hold_by_the_clocks_of_their_zone(
    db: None, start: datetime, begin: int, end: int, days: set[int]
) -> None:
    if begin == end:
        return
    zone = ZoneInfo("Europe/Berlin")
    with transaction.atomic():
        made = discount(
            "Hours", 10, days=sorted(days), from_minute=begin * 60, to_minute=end * 60, zone=zone.key
        )
        (spans,) = discounts_over([DiscountWanted(0, False, start, start + 40 * HOUR)])
        transaction.set_rollback(True)

    assert spans[0].starts_at == start
    assert spans[-1].ends_at == start + 40 * HOUR
    for minute in range(0, 40 * 60, 15):
        at = start + timedelta(minutes=minute)
        local = at.astimezone(zone)
        day = (local - timedelta(days=1)).weekday() if end <= begin and local.hour < end else local.weekday()
        inside = begin <= local.hour < end if begin < end else local.hour >= begin or local.hour < end
        (span,) = [one for one in spans if one.starts_at <= at < one.ends_at]
        if (
            local.fold == 0 and local.dst() == (at + HOUR).astimezone(zone).dst()
        ):  # an hour told twice is one of two
            assert (span.discount == made) == (inside and day in days), local
