from __future__ import annotations

import importlib
import itertools
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.range import TimestamptzRange

from portal.billing.closing import close_period
from portal.billing.metering import active_intervals, meter_all, pieces
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine, UsageRecord, UsageTotal
from portal.billing.selectors import cost_so_far, invoice_view, line_usage, period_of, team_spend
from portal.catalog.models import Rate
from portal.common.errors import Conflict, PeriodClosed
from portal.common.invariants import broken
from portal.leases import lifecycle
from portal.leases.models import LeaseEvent
from tests.billing.zones import ZoneMonths
from tests.portal.builders import World, build_world

SECOND = timedelta(seconds=1)
START = datetime(2026, 1, 30, 12, 0, 0, 250_000, tzinfo=UTC)
RATES = [Rate(micro_per_hour=7, valid=TimestamptzRange(datetime(2024, 1, 1, tzinfo=UTC), None))]


def event(was: str, now: str, at: datetime) -> LeaseEvent:
    return LeaseEvent(was=was, now=now, at=at)


# Months of 31, 28 and 29 days, a year's end, and the nights in which Berlin's clocks go forward and back.
STARTS = [START, *(datetime(*day, 12, 0, 0, 250_000, tzinfo=UTC) for day in (
    (2024, 2, 20), (2025, 12, 20), (2026, 3, 20), (2026, 10, 20)))]  # fmt: skip
ZONES = [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")]
BOOKS = ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati"]


@given(
    st.lists(st.integers(0, 40 * 86_400_000), min_size=1, max_size=12, unique=True),
    st.sampled_from(STARTS),
    st.sampled_from(ZONES),
    st.sampled_from(BOOKS),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_pieces_tile_the_active_seconds_without_gap_or_overlap(
    moments: list[int], start: datetime, zone: tzinfo, books: str
) -> None:
    at = [(start + timedelta(milliseconds=m)).astimezone(zone) for m in sorted(moments)]
    events = [
        event("interrupted", "active", t) if n % 2 == 0 else event("active", "interrupted", t)
        for n, t in enumerate(at)
    ]
    now = at[-1].astimezone(UTC) + timedelta(days=40)

    intervals = active_intervals(events)
    months = ZoneMonths(books)
    found = pieces(intervals, RATES, months=months, now=now)

    ends = [i.ends_at or now.astimezone(UTC).replace(microsecond=0) for i in intervals]
    assert sum(p.stretch.seconds for p in found) == sum(
        int((end - i.starts_at).total_seconds()) for i, end in zip(intervals, ends, strict=True)
    )
    for before, after in itertools.pairwise(found):
        assert before.stretch.ends_at <= after.stretch.starts_at
    # By the instants themselves, not by their seconds: what the zone's clock showed does not matter.
    floors = [int(t.timestamp()) for t in at] + ([int(now.timestamp())] if len(at) % 2 else [])
    assert sum(p.stretch.seconds for p in found) == sum(floors[1::2]) - sum(floors[::2])
    assert all(months.of(p.stretch.starts_at) == months.of(p.stretch.ends_at - SECOND) for p in found)


@pytest.mark.django_db
def test_metering_twice_writes_the_same_seconds_once(world: World) -> None:
    lease = world.ended(seconds=600)

    meter_all(now=world.now)
    meter_all(now=world.now)

    record = UsageRecord.objects.get(lease=lease)
    assert (record.seconds, record.share_milli_seconds) == (600, 600 * lease.share_milli)


@pytest.mark.django_db
def test_a_lease_over_the_end_of_a_month_is_cut_there() -> None:
    month_end = datetime(2026, 2, 1, tzinfo=UTC)
    world = build_world(now=month_end - timedelta(hours=1))
    lease = world.active(duration_s=7200)

    meter_all(now=month_end + timedelta(minutes=10))
    lifecycle.expire_due(now=month_end + timedelta(hours=2))
    meter_all(now=month_end + timedelta(hours=2))

    spans = [
        (r.period.starts_at.month, r.seconds)
        for r in UsageRecord.objects.filter(lease=lease).order_by("span")
    ]
    assert spans == [(1, 3600), (2, 3600)]


@pytest.mark.django_db
def test_a_running_lease_is_accruing_and_not_yet_on_a_line(world: World) -> None:
    lease = world.active(at=world.now - timedelta(seconds=1800), duration_s=3600)
    meter_all(now=world.now)

    view = invoice_view(world.team("perception"), period_of(world.now), now=world.now)

    assert view.lines == []
    assert view.is_draft
    expected = lease.share_milli * 1800 * 3_600_000 // 3_600_000
    assert cost_so_far([lease], now=world.now)[lease.pk] == expected
    if lease.activated_at.month == world.now.month:
        assert view.accruing_micro == expected


@pytest.mark.django_db
def test_the_database_refuses_to_bill_a_second_twice(world: World) -> None:
    lease = world.ended(seconds=600)
    meter_all(now=world.now)
    record = UsageRecord.objects.get(lease=lease)

    record.pk = None
    with pytest.raises(IntegrityError, match="usage_never_billed_twice"), transaction.atomic():
        record.save()


class TestClosing:
    @pytest.fixture
    def closed(self, db: None) -> World:
        world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
        for day in (1, 2, 3):
            begin = datetime(2026, 2, day, 9, 0, 0, 400_000, tzinfo=UTC)
            world.ended("bob", seconds=3607, at=begin, duration_s=7200)
            world.ended("charlie", "h100-3g-40gb", seconds=1234, at=begin, duration_s=7200)
        close_period(
            period=period_of(datetime(2026, 2, 5, tzinfo=UTC)), actor=world.user("finance"), now=world.now
        )
        return world

    def test_invoices_add_up_to_their_lines_and_lines_to_their_usage(self, closed: World) -> None:
        assert Invoice.objects.count() == 2
        for invoice in Invoice.objects.all():
            lines = list(invoice.lines.all())
            assert invoice.total_micro == sum(line.amount_micro for line in lines)
            for line in lines:
                assert line.seconds == line.total.seconds

    def test_the_chain_leads_from_a_line_to_its_lease_events(self, closed: World) -> None:
        period = period_of(datetime(2026, 2, 5, tzinfo=UTC))
        view = invoice_view(closed.team("perception"), period, now=closed.now)

        usage = line_usage(closed.team("perception"), period, view.lines[0].key)

        assert not view.is_draft
        assert [r.seconds for r in usage] == [3607, 3607, 3607]
        assert usage[0].lease.events.filter(now="active").exists()

    def test_numbers_are_gapless(self, closed: World) -> None:
        assert sorted(Invoice.objects.values_list("number", flat=True)) == ["202602-0001", "202602-0002"]

    @pytest.mark.parametrize("model", [UsageRecord, InvoiceLine, Invoice, BillingPeriod])
    def test_nothing_of_a_closed_month_can_be_deleted(self, closed: World, model: type) -> None:
        row = model.objects.order_by("pk").first()

        with pytest.raises(IntegrityError), transaction.atomic():
            model.objects.filter(pk=row.pk)._raw_delete("default")

    def test_no_amount_of_an_issued_invoice_can_be_edited(self, closed: World) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            InvoiceLine.objects.update(amount_micro=0)
        with pytest.raises(IntegrityError), transaction.atomic():
            Invoice.objects.update(total_micro=0)
        with pytest.raises(IntegrityError), transaction.atomic():
            UsageRecord.objects.update(recorded_at=closed.now)

    def test_closing_again_is_refused(self, closed: World) -> None:
        with pytest.raises(PeriodClosed):
            close_period(
                period=period_of(datetime(2026, 2, 5, tzinfo=UTC)),
                actor=closed.user("finance"),
                now=closed.now,
            )

    def test_a_running_month_cannot_be_closed(self, closed: World) -> None:
        with pytest.raises(Conflict):
            close_period(period=period_of(closed.now), actor=closed.user("finance"), now=closed.now)


@pytest.mark.django_db
def test_a_price_that_has_begun_can_only_be_given_an_end(world: World) -> None:
    rate = Rate.objects.first()

    with pytest.raises(IntegrityError, match="has begun"), transaction.atomic():
        Rate.objects.filter(pk=rate.pk).update(micro_per_hour=1)


@pytest.mark.django_db
def test_spend_counts_usage_and_what_still_runs(world: World) -> None:
    world.now = world.now.replace(day=15, hour=12)
    team = world.team("perception")
    world.ended(seconds=3600, at=world.now - timedelta(hours=5), duration_s=7200)
    meter_all(now=world.now)
    before = team_spend([team.pk], period_of(world.now), now=world.now)[team.pk]

    world.active(at=world.now - timedelta(hours=1), duration_s=7200)

    after = team_spend([team.pk], period_of(world.now), now=world.now)[team.pk]
    assert before > 0
    assert after == pytest.approx(2 * before, abs=20_000)


@pytest.mark.django_db
def test_a_month_is_kept_by_line_and_day_and_follows_what_is_taken_back() -> None:
    midnight = datetime(2026, 2, 3, tzinfo=UTC)
    world = build_world(now=midnight + timedelta(days=2))
    lease = world.ended("bob", seconds=5400, at=midnight - timedelta(hours=1), duration_s=7200)
    world.ended("bob", seconds=60, at=midnight + timedelta(hours=3))
    meter_all(now=world.now)

    total = UsageTotal.objects.get()
    share = lease.share_milli
    assert (total.records, total.leases, total.seconds) == (2, 2, 5460)
    assert list(total.days.values_list("day", "share_milli_seconds")) == [
        (date(2026, 2, 2), 3600 * share),
        (date(2026, 2, 3), 1860 * share),
    ]

    UsageRecord.objects.filter(lease=lease).delete()

    total.refresh_from_db()
    assert (total.records, total.leases, total.seconds) == (1, 1, 60)
    assert list(total.days.values_list("day", "seconds")) == [(date(2026, 2, 3), 60)]
    assert {breach.invariant.name for breach in broken()} == {"usage_tiles"}


@pytest.mark.django_db
def test_totals_of_what_is_there_are_made_while_nobody_writes_usage() -> None:
    fill = importlib.import_module("portal.billing.migrations.0006_totals_kept").FILL

    with connection.cursor() as cursor:
        cursor.execute(fill.partition("INSERT")[0])
        cursor.execute(
            "SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'billing_usagerecord'::regclass"
            " AND mode IN ('ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
        )
        assert len(cursor.fetchall()) == 1


@pytest.mark.django_db(transaction=True)
def test_usage_taken_back_waits_for_its_total_before_it_holds_a_day(world: World) -> None:
    world.ended(seconds=600)
    meter_all(now=world.now)
    address = connection.get_connection_params()
    address.pop("cursor_factory")
    address.pop("context")

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT FROM billing_usagetotal FOR UPDATE")
        cursor.execute("SELECT FROM billing_usageday FOR UPDATE")
        with psycopg.connect(**address) as other:
            other.execute("SET lock_timeout = '20ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable) as waited:
                other.execute("DELETE FROM billing_usagerecord")

    assert '"billing_usagetotal"' in (waited.value.diag.context or "")
