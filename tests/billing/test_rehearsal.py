"""A rehearsal shows what the close would issue and why it differs, changes nothing, and holds the close to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import Invoice, InvoiceLine, UsageRecord
from portal.billing.notes import approve_note, propose_note
from portal.billing.rehearsal import DifferenceKind, rehearse_close
from portal.billing.selectors import period_of
from portal.catalog.services import set_rate
from portal.common.errors import Conflict, Invalid, PeriodClosed
from portal.fleet.models import DeviceModel
from tests.portal.builders import H100, World, build_world

JANUARY, FEBRUARY = datetime(2026, 1, 5, 9, tzinfo=UTC), datetime(2026, 2, 5, 9, tzinfo=UTC)
BEGIN = datetime(2026, 2, 1, tzinfo=UTC)
EUR, HOUR = 1_000_000, 3600


@pytest.fixture
def world(db: None) -> World:
    """January closed; February with another price, more of bob, nothing of charlie, alice for the first time."""
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended("bob", "h100", seconds=2 * HOUR, at=JANUARY, duration_s=3 * HOUR)
    world.ended("charlie", "h100", seconds=HOUR, at=JANUARY, duration_s=3 * HOUR)
    model = DeviceModel.objects.get(slug=H100)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # it was set in its time
        set_rate(model=model, micro_per_hour=5 * EUR, starts_at=BEGIN, actor=None, now=JANUARY)
        cursor.execute("SET LOCAL session_replication_role = origin")
    close_period(period=period_of(JANUARY), actor=None, now=world.now)
    world.ended("bob", "h100", seconds=3 * HOUR, at=FEBRUARY, duration_s=4 * HOUR)
    world.ended("alice", "h100-1g-10gb", seconds=1234, at=FEBRUARY)
    line = InvoiceLine.objects.get(invoice__team__slug="perception")
    note = propose_note(
        line=line, amount_micro=EUR, is_credit=True, reason="fault", lease=None, actor=world.user("finance"),
        now=world.now,
    )  # fmt: skip
    approve_note(note=note, actor=world.user("alice"), now=world.now)
    return world


def test_the_close_issues_what_was_rehearsed_and_every_difference_is_named(world: World) -> None:
    february = period_of(FEBRUARY)
    with CaptureQueriesContext(connection) as queries:
        rehearsal = rehearse_close(february, now=world.now)

    assert not [q["sql"] for q in queries if q["sql"].split()[0] in ("INSERT", "UPDATE", "DELETE")]
    assert (UsageRecord.objects.filter(period=february).count(), rehearsal.unmetered) == (0, 2)
    assert rehearsal.total_micro == rehearsal.ledger_micro
    assert rehearsal.can_close
    rows = {row.team.slug: row for row in rehearsal.invoices}
    for row in rows.values():
        assert sum(part.amount_micro for part in row.differences) == row.amount_micro - (
            row.before_micro or 0
        )
    old = rows["perception"].before_micro or 0
    assert {
        part.kind: (part.amount_micro, part.share_milli_seconds) for part in rows["perception"].differences
    } == {
        DifferenceKind.USAGE: (old // 2, HOUR * 1000),
        DifferenceKind.PRICE: (15 * EUR - old * 3 // 2, 0),
        DifferenceKind.NOTES: (-EUR, 0),
    }
    assert [part.kind for part in rows["vision"].differences] == [DifferenceKind.NEW_TEAM]
    assert [part.kind for part in rows["language"].differences] == [DifferenceKind.NO_USE]

    close_period(period=february, actor=None, seen=rehearsal.seen, now=world.now)

    issued = {i.team.slug: i.total_micro for i in Invoice.objects.filter(period=february)}
    assert issued == {slug: row.amount_micro for slug, row in rows.items() if row.lines}
    with pytest.raises(PeriodClosed):
        rehearse_close(period_of(FEBRUARY), now=world.now)


def test_a_close_refuses_what_nobody_has_seen(world: World) -> None:
    february = period_of(FEBRUARY)
    seen = rehearse_close(february, now=world.now).seen
    for minutes in (0, 30):
        world.ended("charlie", "h100", seconds=600, at=FEBRUARY + timedelta(hours=8, minutes=minutes))

    with pytest.raises(Conflict, match="2 more usage records"):
        close_period(period=february, actor=None, seen=seen, now=world.now)
    for nonsense in ("yesterday", "1.2.3"):
        with pytest.raises(Invalid):
            close_period(period=february, actor=None, seen=nonsense, now=world.now)

    assert not Invoice.objects.filter(period=february).exists()
    meter_all(now=world.now)
    close_period(
        period=february, actor=None, seen=rehearse_close(february, now=world.now).seen, now=world.now
    )
