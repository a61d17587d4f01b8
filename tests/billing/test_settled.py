"""A piece of usage is final only when no event before its end can still come, and no month closes before."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Sum

from portal.agents import reports
from portal.billing.checklist import close_items
from portal.billing.closing import close_period
from portal.billing.metering import active_intervals, events_by_lease, meter_all
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine, UsageRecord
from portal.billing.selectors import invoice_view, line_key, line_usage, period_of
from portal.billing.settled import settled_until
from portal.billing.usage_repair import mend_usage
from portal.catalog.services import set_rate
from portal.common.errors import Conflict
from portal.common.invariants import broken
from portal.fleet.models import DeviceModel, Node
from portal.leases import lifecycle
from portal.leases.models import Lease
from tests.portal.builders import H100, World, build_world, make_node

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
MONTH_END = datetime(2026, 2, 1, tzinfo=UTC)
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


@pytest.fixture
def january(db: None) -> World:
    """An hour before the end of January; no month of the books begins earlier."""
    return build_world(now=MONTH_END - HOUR)


def heard(at: datetime, name: str = "gpu-01") -> None:
    Node.objects.filter(name=name).update(last_seen_at=at)


def billed(lease: Lease) -> int:
    return UsageRecord.objects.filter(lease=lease).aggregate(n=Sum("seconds"))["n"] or 0


def active_seconds(lease: Lease) -> int:
    found = active_intervals(events_by_lease([lease])[lease.pk])
    return sum(int((i.ends_at - i.starts_at).total_seconds()) for i in found if i.ends_at)


def unmet(period: BillingPeriod, now: datetime) -> set[str]:
    return {
        item.code for item in close_items(period, now=now, is_closing=True) if item.must and not item.is_met
    }


@contextmanager
def past_triggers() -> Iterator[None]:
    """What an earlier release left behind: rows that its triggers let through, totalled by the migration."""
    kept = importlib.import_module("portal.billing.migrations.0006_totals_kept")
    fill = kept.FILL.replace("max(c.line_id)", "NULL::bigint")  # records of old knew their lines
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("DELETE FROM billing_usageday; DELETE FROM billing_usagetotal;" + fill)
        cursor.execute("SET LOCAL session_replication_role = origin")


def test_a_silent_node_is_not_billed_beyond_its_last_word_when_the_price_changes(january: World) -> None:
    change = january.now + 10 * MINUTE
    with past_triggers():  # it was set in its time
        set_rate(
            model=DeviceModel.objects.get(slug=H100),
            micro_per_hour=1,
            starts_at=change,
            actor=None,
            now=january.now,
        )
    lease = january.active("bob", duration_s=7200)
    heard(change - 43 * SECOND)

    meter_all(now=change + 2 * SECOND)
    assert not UsageRecord.objects.filter(lease=lease).exists()
    lifecycle.interrupt_lost(now=change + HOUR)
    meter_all(now=change + HOUR)

    assert billed(lease) == active_seconds(lease) == 10 * 60 - 43
    assert broken() == []


def test_a_silent_node_is_not_billed_beyond_its_last_word_when_the_month_ends(january: World) -> None:
    lease = january.active("bob", duration_s=7200)
    heard(MONTH_END - 43 * SECOND)

    meter_all(now=MONTH_END + MINUTE)
    lifecycle.interrupt_lost(now=MONTH_END + HOUR)
    meter_all(now=MONTH_END + HOUR)

    assert billed(lease) == active_seconds(lease) == 3600 - 43


def test_a_piece_is_final_as_soon_as_its_node_was_heard_after_it(january: World) -> None:
    lease = january.active("bob", duration_s=7200)
    heard(MONTH_END + SECOND)

    meter_all(now=MONTH_END + MINUTE)

    assert billed(lease) == 3600
    assert broken() == []


def test_what_is_overdue_is_settled_only_up_to_its_end(january: World) -> None:
    lease = january.active("bob", duration_s=1800)
    heard(MONTH_END + HOUR)

    until = settled_until([lease.pk], now=MONTH_END + HOUR)

    assert until == {lease.pk: lease.not_after}


def test_parts_of_a_gang_are_settled_together(january: World) -> None:
    make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=january.now)
    january.submit("alice", "h100", nodes=2, count=2, duration_s=7200)
    leases = january.turn()
    january.ready(*leases)
    heard(MONTH_END + MINUTE)
    heard(MONTH_END - MINUTE, "gpu-02")

    until = settled_until(None, now=MONTH_END + HOUR)

    assert set(until.values()) == {MONTH_END - MINUTE}
    assert len(until) == 2


def test_an_ended_lease_is_settled(january: World) -> None:
    lease = january.ended("bob", seconds=60)

    assert settled_until([lease.pk], now=january.now) == {}


def test_a_node_that_lost_its_journal_stops_the_clock_before_what_was_billed(january: World) -> None:
    lease = january.active("bob", duration_s=7200)
    word = MONTH_END + 5 * SECOND
    heard(word)
    meter_all(now=MONTH_END + MINUTE)

    reports.lose_forgotten(lease.node_id, seen_at=word, now=MONTH_END + 2 * MINUTE)
    meter_all(now=MONTH_END + HOUR)

    assert billed(lease) == active_seconds(lease) == 3605


class TestClosing:
    def test_a_silent_node_keeps_its_month_open_until_its_leases_are_settled(self, january: World) -> None:
        lease = january.active("bob", duration_s=7200)
        heard(MONTH_END - 43 * SECOND)
        period = period_of(january.now)

        with pytest.raises(Conflict, match=f"{lease.uid} \\(gpu-01\\)"):
            close_period(period=period, actor=None, now=MONTH_END + MINUTE)
        assert BillingPeriod.objects.get(pk=period.pk).state == "open"

        heard(MONTH_END + MINUTE)
        (invoice,) = close_period(period=period, actor=None, now=MONTH_END + 2 * MINUTE)
        assert invoice.lines.get().seconds == 3600
        assert broken() == []

    def test_an_overdue_lease_keeps_its_month_open(self, january: World) -> None:
        january.active("bob", duration_s=60)
        heard(MONTH_END + HOUR)

        assert "settled" in unmet(period_of(january.now), MONTH_END + HOUR)

    def test_an_earlier_month_comes_first(self, january: World) -> None:
        january.ended("bob", seconds=60, at=MONTH_END - 40 * 24 * HOUR)
        january.ended("bob", seconds=60)
        meter_all(now=MONTH_END + MINUTE)

        with pytest.raises(Conflict, match="2025-12"):
            close_period(period=period_of(january.now), actor=None, now=MONTH_END + MINUTE)

    def test_a_lease_that_ran_without_a_price_keeps_its_month_open(self, january: World) -> None:
        lease = january.ended("bob", seconds=600, at=january.now)
        with past_triggers(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE catalog_rate SET valid = tstzrange(lower(valid), %s)", [january.now + MINUTE]
            )

        with pytest.raises(Conflict, match=f"no price was in force: {lease.uid}"):
            close_period(period=period_of(january.now), actor=None, now=MONTH_END + MINUTE)

        lease.refresh_from_db()
        assert (billed(lease), lease.is_metered) == (60, False)

    def test_a_broken_sum_keeps_the_month_open(self, january: World) -> None:
        lease = january.ended("bob", seconds=600)
        meter_all(now=january.now)
        with past_triggers():
            UsageRecord.objects.filter(lease=lease).update(micro_per_hour=1)

        with pytest.raises(Conflict, match="usage_pays_its_price"):
            close_period(period=period_of(january.now), actor=None, now=MONTH_END + MINUTE)

    def test_a_lease_that_was_passed_over_keeps_the_month_open(
        self, january: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = january.ended("bob", seconds=600)
        period = period_of(january.now)
        # What metering does with a lease that another transaction holds.
        monkeypatch.setattr("portal.billing.closing.meter_all", lambda now: 0)

        with pytest.raises(Conflict, match=lease.uid):
            close_period(period=period, actor=None, now=MONTH_END + MINUTE)

        monkeypatch.undo()
        assert len(close_period(period=period, actor=None, now=MONTH_END + MINUTE)) == 1

    def test_usage_beyond_the_events_keeps_the_month_open(self, january: World) -> None:
        lease = january.ended("bob", seconds=600)
        meter_all(now=january.now)
        with past_triggers(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE billing_usagerecord SET seconds = 601, share_milli_seconds = 601 * share_milli,"
                " span = tstzrange(lower(span), upper(span) + interval '1 s')"
            )

        assert unmet(period_of(january.now), MONTH_END + MINUTE) == {"metered"}
        with pytest.raises(Conflict, match=lease.uid):
            close_period(period=period_of(january.now), actor=None, now=MONTH_END + MINUTE)


def test_a_lease_whose_usage_is_refused_keeps_no_other_unmetered(january: World) -> None:
    stuck = january.ended("bob", seconds=600)
    meter_all(now=january.now)
    with past_triggers(), connection.cursor() as cursor:  # what an earlier release cut at another second
        cursor.execute(
            "UPDATE billing_usagerecord SET seconds = 599, share_milli_seconds = 599 * share_milli,"
            " span = tstzrange(lower(span) + interval '1 s', upper(span))"
        )
    Lease.objects.filter(pk=stuck.pk).update(is_metered=False)
    other = january.ended("bob", seconds=60)

    assert meter_all(now=MONTH_END) == 1

    assert (billed(other), billed(stuck)) == (60, 599)
    assert set(Lease.objects.filter(is_metered=False)) == {stuck}
    with pytest.raises(Conflict, match=stuck.uid):
        close_period(period=period_of(january.now), actor=None, now=MONTH_END + MINUTE)

    mend_usage(now=MONTH_END + MINUTE)
    assert billed(stuck) == 600
    assert broken() == []


class TestLateUsage:
    @pytest.fixture
    def late(self, january: World) -> Lease:
        """A lease of January that an earlier release did not bill when it closed the month."""
        lease = january.ended("bob", seconds=600, at=january.now)
        january.ended("bob", "h100-3g-40gb", seconds=60, at=january.now)
        meter_all(now=MONTH_END)
        with past_triggers():
            UsageRecord.objects.filter(lease=lease).delete()
            Lease.objects.filter(pk=lease.pk).update(is_metered=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("portal.billing.closing.close_items", lambda period, **_how: [])
            close_period(period=period_of(january.now), actor=None, now=MONTH_END + HOUR)
        assert {b.invariant.name for b in broken()} == {"usage_tiles", "closed_months_are_whole"}
        Lease.objects.filter(pk=lease.pk).update(is_metered=False)
        return lease

    def test_late_usage_is_adjusted_in_the_open_month(self, january: World, late: Lease) -> None:
        march = datetime(2026, 3, 1, 1, tzinfo=UTC)

        meter_all(now=MONTH_END + 2 * HOUR)
        meter_all(now=MONTH_END + 2 * HOUR)

        record = UsageRecord.objects.get(lease=late)
        assert (str(record.period), str(record.late_for), record.seconds) == ("2026-02", "2026-01", 600)
        draft = invoice_view(january.team("perception"), record.period, now=march)
        assert [(line.late_for, line.seconds) for line in draft.lines] == [("2026-01", 600)]
        assert list(line_usage(january.team("perception"), record.period, line_key(record))) == [record]
        assert broken() == []

        close_period(period=record.period, actor=None, now=march)
        line = InvoiceLine.objects.get(late_for__isnull=False)
        assert (str(line.late_for), str(line.invoice.period), line.seconds) == ("2026-01", "2026-02", 600)
        assert Invoice.objects.filter(is_issued=True).count() == 2
        assert broken() == []

    def test_mending_bills_what_an_earlier_release_left_out(self, january: World, late: Lease) -> None:
        Lease.objects.filter(pk=late.pk).update(is_metered=True)

        named = mend_usage(now=MONTH_END + 2 * HOUR, is_dry=True)
        assert not UsageRecord.objects.filter(lease=late).exists()
        mended = mend_usage(now=MONTH_END + 2 * HOUR)

        assert named.leases == mended.leases == [late.uid]
        assert billed(late) == 600
        assert broken() == []

    def test_mending_takes_back_what_an_open_month_has_too_much(self, january: World) -> None:
        lease = january.ended("bob", seconds=600)
        meter_all(now=january.now)
        with past_triggers(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE billing_usagerecord SET seconds = 643, share_milli_seconds = 643 * share_milli,"
                " span = tstzrange(lower(span), upper(span) + interval '43 s')"
            )

        call_command("mend_usage")

        assert billed(lease) == 600
        assert broken() == []

    def test_mending_names_what_a_closed_month_has_too_much(
        self, january: World, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lease = january.ended("bob", seconds=600)
        close_period(period=period_of(january.now), actor=None, now=MONTH_END + HOUR)
        with past_triggers(), connection.cursor() as cursor:
            cursor.execute(
                "UPDATE billing_usagerecord SET seconds = 643, share_milli_seconds = 643 * share_milli,"
                " span = tstzrange(lower(span), upper(span) + interval '43 s')"
            )

        call_command("mend_usage")

        assert billed(lease) == 643
        assert f"{lease.uid}: billed beyond its events" in capsys.readouterr().err
