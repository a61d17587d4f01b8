"""Refund rules: what the way a lease ended gives back, in the transaction that meters it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import RefundRule, UsageRecord
from portal.billing.refunds import cause_of, set_refund_rule, withdraw_refund_rule
from portal.billing.selectors import cost_so_far, invoice_view, period_of
from portal.common.errors import Conflict, Invalid
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.fleet.models import Node
from portal.leases.failures import FORGOTTEN
from portal.leases.lifecycle import end_leases, expire_due, fail_leases, interrupt_lost
from portal.leases.models import Lease
from portal.leases.states import EndReason
from portal.leases.transitions import lock_leases
from portal.web.leases.receipt import receipt_of
from tests.portal.builders import World, build_world

NOW = datetime(2026, 3, 10, 9, tzinfo=UTC)
BEGIN = datetime(2026, 2, 27, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=NOW)


def rule(cause: str, percent: int, **more: int) -> RefundRule:
    """Set a rule that has been in force since before every lease of these tests."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        made = RefundRule.objects.create(
            cause=cause, credit_milli=percent * 10, valid=(BEGIN, None), created_at=BEGIN, **more
        )
        cursor.execute("SET LOCAL session_replication_role = origin")
    return made


@transaction.atomic
def fail(lease: Lease, fault: str, *, at: datetime) -> None:
    fail_leases(lock_leases([lease.pk]), at=at, fault=fault)


@transaction.atomic
def end(lease: Lease, reason: str, *, at: datetime) -> None:
    end_leases(lock_leases([lease.pk]), reason=reason, at=at)


def paid(lease: Lease) -> list[tuple[int, int, str]]:
    """Return seconds, price and cause of the usage of a lease, in order."""
    rows = UsageRecord.objects.filter(lease=lease).select_related("refund").order_by("span")
    return [(row.seconds, row.micro_per_hour, row.refund.cause if row.refund else "") for row in rows]


def test_each_cause_gives_back_what_its_rule_says_and_the_receipt_names_it(world: World) -> None:
    rule("node_lost", 100)
    rule("device_fault", 100, most_s=1800)
    rule("failed_start", 100, within_s=300)
    rule("maintenance", 50)
    rule("early_release", 0)
    begin = NOW - 3 * HOUR
    rebooted, faulty, at_once, maintained, expired = (
        world.active("bob", "h100", at=begin, duration_s=7200) for _ in range(5)
    )
    fail(rebooted, "rebooted", at=begin + HOUR)
    fail(faulty, "gpu_lost: XID 79", at=begin + HOUR)
    fail(at_once, "driver_error: no", at=begin + timedelta(seconds=200))
    end(maintained, EndReason.MAINTENANCE, at=begin + HOUR)
    expire_due(now=begin + 2 * HOUR)
    before = cost_so_far(list(Lease.objects.select_related("flavor__device_model")), now=NOW)

    meter_all(now=NOW)

    whole = UsageRecord.objects.get(lease=expired).micro_per_hour
    assert paid(expired) == [(7200, whole, "")]
    assert paid(rebooted) == [(3600, 0, "node_lost")]
    assert paid(faulty) == [(1800, whole, ""), (1800, 0, "device_fault")]
    assert paid(at_once) == [(200, 0, "failed_start")]
    assert paid(maintained) == [(3600, whole // 2, "maintenance")]
    assert cost_so_far(list(Lease.objects.select_related("flavor__device_model")), now=NOW) == before
    rebooted.refresh_from_db()
    receipt = receipt_of(rebooted)
    assert (receipt.total, receipt.refunded) == (0, Decimal(whole) / 1_000_000)
    assert receipt.refund == "Node lost: not charged (rule of 27 Feb 2026)"
    view = invoice_view(world.team("perception"), period_of(NOW), now=NOW)
    assert sum(line.amount_micro for line in view.lines) == view.total_micro
    assert broken() == []


def test_a_silent_node_and_a_month_end_are_refunded_as_far_as_months_are_open(world: World) -> None:
    rule("node_lost", 100)
    start = datetime(2026, 2, 28, 22, tzinfo=UTC)
    leases = [world.active("bob", "h100", at=start, duration_s=8 * 3600) for _ in range(2)]
    heard = start + 4 * HOUR
    Node.objects.update(last_seen_at=heard)
    interrupt_lost(now=heard + HOUR)
    meter_all(now=heard + HOUR)
    whole = paid(leases[0])[0][1]
    assert [paid(lease) for lease in leases] == [[(7200, whole, ""), (7200, whole, "")]] * 2
    fail(leases[0], FORGOTTEN, at=heard + HOUR)
    meter_all(now=heard + HOUR)
    assert paid(leases[0]) == [(7200, 0, "node_lost"), (7200, 0, "node_lost")]

    Node.objects.update(last_seen_at=NOW)
    fail(leases[1], "driver_error: no", at=heard + 2 * HOUR)
    february = period_of(start)
    meter_all(now=NOW)
    assert paid(leases[1])[0][2] == "node_lost"
    close_period(period=february, actor=None, now=NOW)

    february.refresh_from_db()
    assert [check.name for check in verify_books(february, now=NOW) if check.wrong] == []
    assert broken() == []


def test_what_a_closed_month_billed_stays(world: World) -> None:
    rule("device_fault", 100)
    start = datetime(2026, 2, 28, 22, tzinfo=UTC)
    lease = world.active("bob", "h100", at=start, duration_s=6 * 24 * 3600)
    close_period(period=period_of(start), actor=None, now=start + timedelta(days=2))
    fail(lease, "gpu_lost", at=start + 4 * HOUR)

    meter_all(now=NOW)

    assert [cause for _seconds, _price, cause in paid(lease)] == ["", "device_fault"]
    assert broken() == []


def test_a_rule_is_dated_locked_once_begun_and_planned_ones_are_withdrawn(world: World) -> None:
    finance, soon = world.user("finance"), datetime.now(UTC) + timedelta(days=2)
    given = {"most_s": None, "within_s": None, "actor": finance}

    begun = set_refund_rule(cause="node_lost", credit_milli=1000, starts_at=None, **given)
    planned = set_refund_rule(cause="node_lost", credit_milli=0, starts_at=soon, **given)

    begun.refresh_from_db()
    planned.refresh_from_db()
    assert begun.valid.upper == planned.valid.lower
    for wrong in (
        {"cause": "weather"},
        {"credit_milli": 1001},
        {"starts_at": datetime.now(UTC) - HOUR},
        {"within_s": 60},
        {"cause": "failed_start"},
    ):
        with pytest.raises(Invalid):
            set_refund_rule(**({"cause": "preempted", "credit_milli": 1, "starts_at": None} | given | wrong))
    with pytest.raises(Conflict):
        set_refund_rule(cause="node_lost", credit_milli=1, starts_at=soon - HOUR, **given)
    with pytest.raises(Conflict):
        withdraw_refund_rule(rule_id=begun.pk, actor=finance)
    withdraw_refund_rule(rule_id=planned.pk, actor=finance)
    begun.refresh_from_db()
    assert begun.valid.upper is None
    for attack in (
        "UPDATE billing_refundrule SET credit_milli = 1",
        "UPDATE billing_refundrule SET valid = tstzrange('2020-01-01Z', NULL)",
        "DELETE FROM billing_refundrule",
        "INSERT INTO billing_refundrule (cause, credit_milli, valid, created_at)"
        " VALUES ('preempted', 1000, tstzrange('2020-01-01Z', NULL), now())",
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            execute(attack)


def test_a_lease_that_goes_on_has_no_cause(world: World) -> None:
    lease = world.active("bob", "h100", at=NOW - HOUR)

    assert cause_of(lease, list(lease.events.all())) is None
