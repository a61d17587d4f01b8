"""The proof of a month is silent on honest books, and names what somebody changed past all guards."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.selectors import period_of
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
OLDEST = "(SELECT min(id) FROM billing_invoice)"
# What somebody who is master of the database does, and the proofs that see it.
FORGERIES = {
    "a line made dearer, and its invoice with it": (
        (
            "UPDATE billing_invoiceline SET amount_micro = amount_micro + 10000 WHERE invoice_id = " + OLDEST,
            "UPDATE billing_invoice SET total_micro = total_micro + 10000 WHERE id = " + OLDEST,
        ),
        {"lines_are_rated_usage", "totals_are_rated_usage", "chain_is_whole", "promises_hold"},
    ),
    "another name on a line": (("UPDATE billing_invoiceline SET person = 'Mallory'",), {"chain_is_whole"}),
    "an invoice taken out": (
        (
            "UPDATE billing_usagetotal SET line_id = NULL WHERE line_id IN"
            f" (SELECT id FROM billing_invoiceline WHERE invoice_id = {OLDEST})",
            f"DELETE FROM billing_invoiceline WHERE invoice_id = {OLDEST}",
            f"DELETE FROM billing_invoice WHERE id = {OLDEST}",
        ),
        {"totals_are_rated_usage", "numbers_are_gapless", "chain_is_whole", "promises_hold"},
    ),
    "a record made shorter": (
        (
            "UPDATE billing_usagerecord SET seconds = seconds - 60, share_milli_seconds = (seconds - 60) * share_milli,"
            " span = tstzrange(lower(span), upper(span) - interval '60 s')",
        ),
        {"usage_is_active_time", "totals_are_rated_usage", "promises_hold", "capacity_adds_up"},
    ),
}


@pytest.fixture
def world(db: None) -> World:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended("bob", seconds=3607, at=FEBRUARY, duration_s=7200)
    world.ended("charlie", "h100-3g-40gb", seconds=1234, at=FEBRUARY, duration_s=7200)
    close_period(period=period_of(FEBRUARY), actor=None, now=world.now)
    return world


def test_honest_books_are_proved_and_the_command_says_so(world: World) -> None:
    out = io.StringIO()

    call_command("verify_books", period="2026-02", json=True, stdout=out)

    found = json.loads(out.getvalue())
    assert (found["is_right"], found["state"]) == (True, "closed")
    assert len(found["checks"]) == 10


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_past_all_guards_is_named(world: World, forgery: str) -> None:
    changes, seen_by = FORGERIES[forgery]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        for change in changes:
            cursor.execute(change)
        cursor.execute("SET LOCAL session_replication_role = origin")

    wrong = {check.name for check in verify_books(period_of(FEBRUARY), now=world.now) if check.wrong}

    assert wrong == seen_by
    with pytest.raises(CommandError, match="not right"):
        call_command("verify_books", period="2026-02", stdout=io.StringIO())


def test_a_month_that_the_books_do_not_have_is_named(world: World) -> None:
    with pytest.raises(CommandError, match="YYYY-MM"):
        call_command("verify_books", period="2026-13")


def test_a_month_that_runs_is_right_while_leases_wait_to_be_metered(world: World) -> None:
    lease = world.active("bob", at=world.now)
    later = world.now + timedelta(minutes=10)

    assert not wrong_in(world.now, later)

    # Metered beyond what it ran, it is named although metering is not done with it.
    other = world.ended("charlie", seconds=60, at=world.now, duration_s=600)
    meter_all(now=later)
    assert not wrong_in(world.now, later)
    record = UsageRecord.objects.get(lease=other)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("UPDATE billing_usagerecord SET lease_id = %s WHERE id = %s", [lease.pk, record.pk])
        cursor.execute(
            "UPDATE billing_usagerecord SET span = tstzrange(lower(span) - interval '1 h', upper(span)) WHERE id = %s",
            [record.pk],
        )

    assert "usage_is_active_time" in wrong_in(world.now, later)


def wrong_in(month: datetime, now: datetime) -> set[str]:
    """Return the proofs that fail."""
    return {check.name for check in verify_books(period_of(month), now=now) if check.wrong}
