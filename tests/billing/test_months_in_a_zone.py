"""Months that begin at midnight in the organisation's zone: their bounds, days, and how the zone is set."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from itertools import pairwise

import pytest
from django.db import IntegrityError, connection, transaction

from portal.audit.models import AuditEntry
from portal.billing.closing import close_period
from portal.billing.daily import month_days
from portal.billing.focus import write_focus
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, MonthZone, UsageDay, UsageRecord
from portal.billing.periods import day_starts, month_zones, open_period, period_of, set_month_zone
from portal.billing.report import report_of
from portal.common.errors import Invalid
from portal.common.invariants import broken
from portal.common.months import Months, next_month
from portal.common.sql import fetch
from portal.common.zones import zone_names
from portal.fleet.models import Node
from portal.teams.models import Team
from tests.billing.zones import ZoneMonths, lay_down
from tests.portal.builders import build_world

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_midnights_of_the_database_are_those_of_clocks() -> None:
    days = [date(2024, 1, 1) + timedelta(days=n) for n in range(1100)]
    for zone in ("UTC", "Asia/Shanghai", "Europe/Berlin", "America/Havana", "Africa/Cairo", "Asia/Kathmandu",
                 "America/Santiago", "America/St_Johns", "Pacific/Apia", "Australia/Lord_Howe"):  # fmt: skip
        clocks = ZoneMonths(zone)
        found = fetch("SELECT d, billing_midnight(d, %s) FROM unnest(%s::date[]) d", [zone, days])
        assert [at for _day, at in found] == [clocks.start(day) for day, _at in found], zone


def test_the_zones_one_can_choose_are_known_to_the_database() -> None:
    known = {name for (name,) in fetch("SELECT name FROM pg_timezone_names")}

    assert len(zone_names() - known) < len(zone_names()) / 20  # data of another year may have some more


def test_days_of_23_and_25_hours_a_leap_day_and_the_year_s_end() -> None:
    lay_down("Europe/Berlin")
    lengths = {
        month: [(b - a) / HOUR for a, b in pairwise(day_starts(open_period(month)))]
        for month in (date(2026, 3, 1), date(2025, 10, 1), date(2024, 2, 1), date(2025, 12, 1))
    }

    assert [len(days) for days in lengths.values()] == [31, 31, 29, 31]
    assert [sum(days) for days in lengths.values()] == [743, 745, 696, 744]
    assert (lengths[date(2026, 3, 1)][28], lengths[date(2025, 10, 1)][25]) == (23, 25)
    assert BillingPeriod.objects.get(month=date(2025, 12, 1)).ends_at == datetime(
        2025, 12, 31, 23, tzinfo=UTC
    )
    assert str(period_of(datetime(2025, 12, 31, 23, tzinfo=UTC))) == "2026-01"


def test_an_office_in_utc_plus_eight_closes_at_its_own_midnight() -> None:
    lay_down("Asia/Shanghai")
    midnight = datetime(2026, 1, 31, 16, tzinfo=UTC)
    world = build_world(now=midnight - HOUR)
    world.ended("bob", "h100", seconds=7200, at=midnight - HOUR, duration_s=7200)
    meter_all(now=midnight + 2 * HOUR)

    january, february = period_of(midnight - HOUR), period_of(midnight)
    seconds = {u.period: u.seconds for u in UsageRecord.objects.select_related("period")}
    assert ({str(p): s for p, s in seconds.items()}, january.ends_at) == (
        {"2026-01": 3600, "2026-02": 3600},
        midnight,
    )
    assert set(UsageDay.objects.values_list("day", "seconds")) == {
        (date(2026, 1, 31), 3600),
        (date(2026, 2, 1), 3600),
    }
    days = month_days([world.team("perception").pk], february, now=midnight + 3 * HOUR)
    assert (days.first, days.n_days, days.totals[0], days.full_days) == (date(2026, 2, 1), 28, days.spent, 0)

    (invoice,) = close_period(period=january, actor=None, now=midnight + 3 * HOUR)
    assert invoice.number == "202601-0001"
    report = report_of(january, list(Team.objects.all()), now=midnight + 3 * HOUR)
    assert list(report.exact_by_day) == [date(2026, 1, 31)]
    file = BytesIO()
    write_focus(file, january, report.charges)
    assert b"2025-12-31T16:00:00Z" in file.getvalue()
    assert b"2026-01-31T16:00:00Z" in file.getvalue()
    assert [b.invariant.name for b in broken()] == []


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/New_York", "Pacific/Kiritimati"])
def test_another_zone_holds_from_a_month_that_nobody_has_used(zone: str) -> None:
    now = datetime(2026, 3, 10, 9, tzinfo=UTC)
    world = build_world(now=now)
    world.ended("bob", "h100", seconds=600, at=now)
    meter_all(now=now)
    assert month_zones(now=now).earliest == date(2026, 4, 1)
    with pytest.raises(Invalid) as refused:
        set_month_zone(zone=zone, since=date(2026, 3, 1), actor=None, now=now)
    assert "2026-04" in refused.value.fields["since"]
    period_of(datetime(2026, 4, 2, tzinfo=UTC))  # somebody looked ahead

    told = set_month_zone(zone=zone, since=None, actor=world.user("finance"), now=now)

    assert (told.zone, told.planned and told.planned.name) == ("UTC", zone)
    march, april = period_of(now), open_period(date(2026, 4, 1))
    assert (april.starts_at, april.zone) == (march.ends_at, zone)
    assert april.ends_at == ZoneMonths(zone).start(date(2026, 5, 1))
    assert AuditEntry.objects.filter(action="months.zone_set", target=zone).count() == 1
    # Its first day begins with it: all of what is used before the first midnight is on it, and days add up.
    Node.objects.update(last_seen_at=april.starts_at + 40 * HOUR)
    world.ended("bob", "l40s-quarter", seconds=144_000, at=april.starts_at - HOUR, duration_s=144_000)
    meter_all(now=april.starts_at + 48 * HOUR)
    own = dict(UsageDay.objects.filter(total__period=april).values_list("day", "seconds"))
    assert (min(own), sum(own.values())) == (date(2026, 4, 1), 39 * 3600)
    days = month_days([world.team("perception").pk], april, now=april.starts_at + 48 * HOUR)
    per_second = days.spent / (39 * 3600)
    assert [round(v / per_second) for v in days.totals if v] == [own[day] for day in sorted(own)]
    assert [b.invariant.name for b in broken()] == []


def test_an_empty_installation_is_in_its_zone_at_once_and_may_think_again() -> None:
    now = datetime(2026, 2, 28, 20, tzinfo=UTC)
    period_of(now)

    set_month_zone(zone="Asia/Shanghai", since=None, actor=None, now=now)

    assert str(period_of(now)) == "2026-03"  # it is March there
    assert period_of(now).starts_at == datetime(2026, 2, 28, 16, tzinfo=UTC)
    later = now + timedelta(days=2)
    set_month_zone(zone="UTC", since=None, actor=None, now=later)
    assert (period_of(later).zone, period_of(later).starts_at) == ("UTC", datetime(2026, 3, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("zone", "since"), [("Mars/Olympus", None), ("UTC", date(2031, 1, 1)), ("UTC", date(2026, 5, 2))]
)
def test_a_zone_or_month_that_there_is_not_changes_nothing(zone: str, since: date | None) -> None:
    with pytest.raises(Invalid):
        set_month_zone(zone=zone, since=since, actor=None, now=datetime(2026, 3, 10, tzinfo=UTC))

    assert not MonthZone.objects.exists()


def test_months_hang_together_whatever_is_read_first() -> None:
    lay_down("America/Havana")
    months = Months()
    first = date(2025, 11, 1)
    for _ in range(24):
        start, end = months.start(first), months.start(next_month(first))
        assert (months.of(start), months.of(end - timedelta(microseconds=1))) == (first, first)
        assert start == ZoneMonths("America/Havana").start(first)
        first = next_month(first)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_billingperiod (month, zone, starts_at, ends_at, state) VALUES "
            "('2026-11-01', 'America/Havana', '2026-11-01 05:00Z', '2026-12-01 05:00Z', 'open')"
        )
