"""The minimum charge of a lease: one price for all of its seconds, at which it comes to the minimum of its rate."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.range import TimestamptzRange

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.metering import Piece, at_minimum, meter_all
from portal.billing.models import InvoiceLine, RefundRule, UsageRecord
from portal.billing.price_effect import effect_of_price
from portal.billing.selectors import cost_so_far, invoice_view, period_of
from portal.catalog.models import Flavor, Rate
from portal.catalog.pricing import RateInterval, quote
from portal.catalog.services import move_rate, set_rate, withdraw_rate
from portal.common.errors import Invalid
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.fleet.models import DeviceModel
from portal.leases import lifecycle
from portal.leases.models import Lease
from portal.leases.states import EndReason
from portal.leases.transitions import lock_leases
from portal.web.invoices.csv_file import invoice_csv
from portal.web.leases.receipt import receipt_of
from portal.web.reports.files import answer
from tests.portal.builders import H100, PRICES, World, build_world

NOW = datetime(2026, 3, 10, 9, tzinfo=UTC)
BEGIN = datetime(2026, 2, 27, tzinfo=UTC)
HOUR = timedelta(hours=1)
HALF = 500_000  # 0.50
PRICE = PRICES["h100-80gb"]


@pytest.fixture
def world(db: None) -> World:
    found = build_world(now=NOW)
    _in_the_past("UPDATE catalog_rate SET minimum_micro = %s", [HALF])
    return found


def _in_the_past(sql: str, values: list[object]) -> None:
    """Run a statement that no page offers: as if finance had set it before every lease of these tests."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, values)
        cursor.execute("SET LOCAL session_replication_role = origin")


@transaction.atomic
def end(lease: Lease, reason: str, *, at: datetime) -> None:
    lifecycle.end_leases(lock_leases([lease.pk]), reason=reason, at=at)


@transaction.atomic
def _write_instead(row: UsageRecord, values: dict[str, object]) -> None:
    UsageRecord.objects.filter(pk=row.pk).delete()
    UsageRecord(**values).save(force_insert=True)


def cost(lease: Lease) -> Fraction:
    rows = UsageRecord.objects.filter(lease=lease)
    return sum((Fraction(r.share_milli_seconds * r.micro_per_hour, 3_600_000) for r in rows), Fraction(0))


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=4), st.integers(1, 1000), st.integers(1, 10**8),
    st.integers(1, 10**9),
)  # fmt: skip
def test_a_lease_comes_to_its_minimum_or_to_more_by_its_time(
    lengths: list[int], share: int, price: int, minimum: int
) -> None:
    rate = Rate(micro_per_hour=price, minimum_micro=minimum, valid=TimestamptzRange(BEGIN, None))
    at, parts = BEGIN, []
    for seconds in lengths:
        parts.append(Piece(RateInterval(rate, at, at + timedelta(seconds=seconds)), is_final=True))
        at += timedelta(seconds=seconds)
    flavor = Flavor(memory_mib=81_920, share_milli=1000)
    lease = Lease(flavor=flavor, share_milli=share, price_milli=1000)

    found = at_minimum(lease, parts, minimum, [])

    quantity = sum(lengths) * share
    usual = Fraction(quantity * price, 3_600_000)
    exact = sum((Fraction(p.stretch.seconds * share * p.price(lease), 3_600_000) for p in found), Fraction(0))
    if usual >= minimum:
        assert found == parts
    else:
        assert minimum <= exact < minimum + Fraction(quantity, 3_600_000)
        assert {p.minimum_micro for p in found} == {minimum}


def test_short_leases_pay_the_minimum_and_who_ended_by_a_fault_does_not(world: World) -> None:
    begin = NOW - 3 * HOUR
    released, expired, long, failed, preempted, maintained = (
        world.active("bob", "h100", at=begin, duration_s=300 if n == 1 else 7200) for n in range(6)
    )
    minute = begin + timedelta(seconds=60)
    end(released, EndReason.RELEASED, at=minute)
    with transaction.atomic():
        lifecycle.fail_leases(lock_leases([failed.pk]), at=minute, fault="driver_error: no")
    end(preempted, EndReason.PREEMPTED, at=minute)
    end(maintained, EndReason.MAINTENANCE, at=minute)
    lifecycle.expire_due(now=begin + 2 * HOUR)
    before = cost_so_far(list(Lease.objects.select_related("flavor__device_model")), now=NOW)

    meter_all(now=NOW)

    assert [int(cost(one)) for one in (released, expired)] == [HALF, HALF]
    by_time = PRICE // 60
    assert [cost(one) for one in (failed, preempted, maintained)] == [by_time] * 3
    assert cost(long) == 2 * PRICE
    assert before == {lease.pk: int(cost(lease)) for lease in Lease.objects.all()}
    released.refresh_from_db()
    receipt = receipt_of(released)
    assert (receipt.total, receipt.minimum, receipt.refunded) == (Decimal("0.5"), Decimal("0.5"), None)
    assert "minimum charge of 0.50" in receipt.lines[0].detail
    view = invoice_view(world.team("perception"), period_of(NOW), now=NOW)
    assert [line.amount_micro for line in view.lines if line.minimum_micro == HALF] == [HALF, HALF]
    assert sum(line.amount_micro for line in view.lines) == view.total_micro
    assert broken() == []

    # What breaks it: a raised price taken back, and one that is too high.
    row = UsageRecord.objects.get(lease=released)
    stored = {
        field.attname: getattr(row, field.attname) for field in row._meta.fields if field.attname != "id"
    }
    for wrong in (
        {"minimum_micro": None}, {"micro_per_hour": row.micro_per_hour + 61}, {"minimum_micro": HALF - 1}
    ):  # fmt: skip
        with pytest.raises(DatabaseError):
            _write_instead(row, stored | wrong)
    with pytest.raises(DatabaseError), transaction.atomic():
        execute("UPDATE catalog_rate SET minimum_micro = 1")

    close_period(period=period_of(NOW), actor=None, now=datetime(2026, 4, 2, tzinfo=UTC))
    assert [check for check in verify_books(period_of(NOW), now=NOW + 40 * 24 * HOUR) if check.wrong] == []
    issued = invoice_view(world.team("perception"), period_of(NOW), now=NOW)
    assert sorted(line.minimum_micro for line in issued.lines) == [0, HALF, HALF]
    assert InvoiceLine.objects.filter(amount_micro=HALF).count() == 2


def test_what_is_free_or_refunded_stays_so_and_a_closed_month_counts_towards_the_minimum(
    world: World,
) -> None:
    last_of_february = datetime(2026, 2, 28, 23, 59, 30, tzinfo=UTC)
    over_the_end = world.active("bob", "h100", at=last_of_february, duration_s=7200)
    free, refunded = (
        world.active(name, "h100", at=NOW - HOUR, duration_s=7200) for name in ("charlie", "bob")
    )
    meter_all(now=last_of_february + timedelta(seconds=50))
    (first,) = UsageRecord.objects.filter(lease=over_the_end)
    assert (first.seconds, first.micro_per_hour, first.minimum_micro) == (30, PRICE, None)

    end(over_the_end, EndReason.RELEASED, at=last_of_february + timedelta(seconds=60))
    close_period(period=period_of(last_of_february), actor=None, now=NOW)
    assert int(cost(over_the_end)) == HALF, "known before the close: both months are raised"
    assert UsageRecord.objects.filter(lease=over_the_end).values("micro_per_hour").distinct().count() == 1

    _in_the_past(
        "INSERT INTO catalog_discount (name, off_milli, only_preemptible, days, from_minute, to_minute, zone, valid,"
        " created_at, team_id) VALUES ('Free', 1000, false, '{}', 0, 0, 'UTC', tstzrange(%s, NULL), now(), %s)",
        [NOW - 2 * HOUR, world.team("language").pk],
    )
    end(free, EndReason.RELEASED, at=NOW - HOUR + timedelta(seconds=60))
    meter_all(now=NOW)
    assert cost(free) == 0
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        RefundRule.objects.create(
            cause="early_release", credit_milli=1000, most_s=10, valid=(BEGIN, None), created_at=BEGIN
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    end(refunded, EndReason.RELEASED, at=NOW - HOUR + timedelta(seconds=60))
    meter_all(now=NOW)
    assert cost(refunded) == Fraction(PRICE * 50, 3600)


def test_a_quote_holds_the_minimum_and_a_price_is_tried_with_one(world: World) -> None:
    flavor, team = Flavor.objects.get(slug="h100"), world.team("perception")
    short, gang, apart, extension = (
        quote(flavor, team_id=team.pk, count=n, duration_s=60, starts_at=NOW, leases=leases)
        for n, leases in ((1, (1, 1)), (4, (2, 2)), (4, (1, 4)), (1, (0, 0)))
    )
    assert (short.amount_micro, short.hold_micro, short.minimum_micro) == (HALF, HALF, HALF)
    assert (gang.amount_micro, gang.hold_micro) == (2 * HALF, 2 * HALF)
    assert (apart.amount_micro, apart.hold_micro, apart.minimum_micro) == (HALF, 4 * HALF, HALF)
    assert (extension.amount_micro, extension.minimum_micro) == (PRICE // 60, 0)

    model, finance = DeviceModel.objects.get(slug=H100), world.user("finance")
    ended = datetime(2026, 2, 5, 9, tzinfo=UTC)
    world.ended("bob", "h100", seconds=60, at=ended, duration_s=600)
    world.ended("bob", "h100", seconds=3600, at=ended, duration_s=7200)
    meter_all(now=NOW)
    tried = effect_of_price(model=model, micro_per_hour=PRICE, minimum_micro=2_000_000, now=NOW)
    assert (tried.whole.charged_micro, tried.whole.then_micro) == (HALF + PRICE, 2_000_000 + PRICE)
    assert effect_of_price(model=model, micro_per_hour=PRICE, now=NOW).whole.then_micro == 60_000 + PRICE

    set_ = {"model": model, "actor": finance, "now": NOW, "micro_per_hour": PRICE}
    later = datetime(2099, 1, 1, tzinfo=UTC)
    with pytest.raises(Invalid):
        set_rate(**set_, minimum_micro=10**10 + 1, starts_at=later)
    planned = set_rate(**set_, minimum_micro=HALF * 2, starts_at=later)
    moved = move_rate(rate_id=planned.pk, starts_at=later + HOUR, actor=finance, now=NOW)
    assert moved.minimum_micro == 2 * HALF
    withdraw_rate(rate_id=moved.pk, actor=finance, now=NOW)


def test_files_say_which_lines_are_a_minimum_charge(world: World) -> None:
    world.ended("bob", "h100", seconds=60, at=NOW - HOUR, duration_s=600)
    world.ended("bob", "h100", seconds=3600, at=NOW - 2 * HOUR, duration_s=7200)
    meter_all(now=NOW)
    period, team = period_of(NOW), world.team("perception")
    said = [("minimum", "minimum charge 0.50 for a lease"), ("", "")]

    file = answer("lines.csv", period, [team], person="", slug="")
    report = list(csv.DictReader(io.StringIO(b"".join(file.streaming_content).decode("utf-8-sig"))))
    invoice = list(
        csv.DictReader(io.StringIO(invoice_csv(invoice_view(team, period, now=NOW)).lstrip("\ufeff")))
    )

    for rows in (report, invoice):
        assert sorted((row["note"], row["reason"]) for row in rows) == sorted(said)
