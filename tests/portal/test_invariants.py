"""The checker is silent on an honest installation and names each kind of corruption."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from portal.billing.closing import close_period
from portal.billing.external_usage import apply_usage
from portal.billing.imports import text_digest
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine
from portal.billing.notes import approve_note, propose_note
from portal.billing.opening_balances import apply_balances
from portal.billing.selectors import period_of
from portal.billing.settlement import settle_wallets
from portal.budgets.wallets import move_by_hand, open_wallet
from portal.common.invariants import INVARIANTS, broken
from tests.portal.builders import World, build_world
from tests.portal.shared import Shared

pytestmark = pytest.mark.django_db
CORRUPTIONS = {
    "no_overlap": "UPDATE leases_placement SET is_live = true, slots = int8range(0,8),"
    " period = tstzrange(now(), NULL), device_id = (SELECT min(id) FROM fleet_device) WHERE host_id IS NULL",
    "host_sums": "UPDATE leases_sharedhost SET used_memory_mib = used_memory_mib + 1",
    "mps_of_one_team": "UPDATE leases_placement SET team_id = (SELECT max(id) FROM teams_team)"
    " WHERE id = (SELECT max(id) FROM leases_placement WHERE mode = 'mps' AND host_id IS NOT NULL)",
    "quota_counters": "UPDATE quotas_quota SET used_milli = used_milli + 1",
    "live_leases_hold": "UPDATE leases_placement SET is_live = false",
    "gang_complete": "UPDATE leases_lease SET count = count + 1",
    "awake_while_held": "UPDATE fleet_node SET power_desired = 'asleep'",
    "granted_has_lease": "UPDATE leases_leaserequest SET state = 'granted'",
    "gang_in_all_parts": "UPDATE leases_leaserequest SET nodes = 2 WHERE state = 'granted'",
    "states_follow_events": "UPDATE leases_lease SET state = 'preparing' WHERE state = 'active'",
    "events_run_forward": "UPDATE leases_leaseevent SET at = at - interval '1 hour' WHERE now = 'cleaning'",
    "no_lease_ends_after_its_end": "UPDATE leases_lease SET not_after = ended_at - interval '1 second'"
    " WHERE ended_at IS NOT NULL",
    "usage_never_twice": "UPDATE billing_usagerecord SET"
    " lease_id = (SELECT min(lease_id) FROM billing_usagerecord),"
    " span = (SELECT span FROM billing_usagerecord ORDER BY id LIMIT 1)",
    "usage_tiles": "UPDATE billing_usagerecord SET seconds = seconds + 1,"
    " share_milli_seconds = (seconds + 1) * share_milli",
    "usage_so_far": "UPDATE billing_usagerecord SET"
    " lease_id = (SELECT min(id) FROM leases_lease WHERE state = 'active')"
    " WHERE id = (SELECT min(id) FROM billing_usagerecord)",
    "closed_months_are_whole": "DELETE FROM billing_usagerecord"
    " WHERE id = (SELECT min(id) FROM billing_usagerecord)",
    "usage_in_its_month": "UPDATE billing_usagerecord SET late_for_id = period_id",
    "usage_on_its_invoice": "UPDATE billing_usagetotal SET currency = 'USD'",
    "invoices_issued_by_closing": "UPDATE billing_billingperiod SET state = 'open', closed_at = NULL",
    "invoices_add_up": "UPDATE billing_invoice SET total_micro = total_micro + 10000",
    "lines_match_usage": "UPDATE billing_invoiceline SET seconds = seconds + 1",
    "closed_months_are_billed": "UPDATE billing_usagetotal SET line_id = NULL",
    "totals_are_their_usage": "UPDATE billing_usageday SET seconds = seconds + 1"
    " WHERE id = (SELECT min(id) FROM billing_usageday)",
    "lines_are_their_totals": "UPDATE billing_invoiceline SET lease_count = lease_count + 1",
    "notes_within_their_lines": "UPDATE billing_invoicenote SET amount_micro = amount_micro * 1000",
    "notes_are_their_lines": "UPDATE billing_invoicenote SET period_id ="
    " (SELECT id FROM billing_billingperiod WHERE state = 'closed')",
    "wallets_add_up": "UPDATE budgets_wallet SET balance_micro = balance_micro + 1",
    "imports_are_whole": "UPDATE billing_openingbalance SET balance_micro = 20000",
    "external_usage_is_its_lines": "UPDATE billing_externalusage SET is_live = false",
    "holds_are_their_movements": "DELETE FROM budgets_wallethold",
    "wallets_settle_usage": "UPDATE budgets_walletmovement SET cost_micro = cost_micro + 1",
    "usage_pays_its_price": "UPDATE leases_lease SET price_milli = 600",
    "minimum_is_charged": "UPDATE catalog_rate SET minimum_micro = 10000000000",
    "one_price_at_a_time": "UPDATE catalog_rate SET device_model_id ="
    " (SELECT min(id) FROM fleet_devicemodel)",
    "slices_lie_legally": "UPDATE leases_placement SET start = 1, slots = int8range(1, 1 + size)"
    " WHERE profile = '3g.40gb'",
    "one_mode_at_a_time": "UPDATE leases_placement SET mode = 'memlimit' WHERE host_id IS NOT NULL",
    "steps_are_a_chain": "DELETE FROM leases_leaseevent WHERE now = 'cleaning'",
    "usage_inside_its_lease": "UPDATE leases_lease SET activated_at = activated_at + interval '1 minute'",
    "lines_cost_their_usage": "UPDATE billing_invoiceline SET amount_micro = amount_micro + 10000",
    "one_currency_per_invoice": "UPDATE billing_invoice SET currency = 'USD'",
    "invoice_numbers_gapless": "UPDATE billing_invoice SET number = '202602-0002'",
    "invoices_are_a_chain": "UPDATE billing_invoiceline SET person = person || 'x'",
    "rows_of_one_team": "UPDATE billing_usagerecord SET team_id = (SELECT max(id) FROM teams_team)",
    "seats_wait_for_their_people": "UPDATE leases_leaserequest SET awaits_person = true",
    "idle_goes_by_its_rule": "UPDATE leases_lease SET preempt_at = not_after WHERE state = 'active'",
    "secrets_are_digests": "UPDATE accounts_apitoken SET digest = 'bth_in-clear'",
    "somebody_runs_it": "UPDATE accounts_user SET is_active = false WHERE username = 'operator'",
}
EXCLUSIONS = (
    ("leases_placement", "placements_never_overlap"),
    ("billing_usagerecord", "usage_never_billed_twice"),
    ("catalog_rate", "one_rate_at_a_time"),
)


@pytest.fixture(scope="module")
def busy(shared: Shared) -> World:
    """An installation with a closed month, ended, running and shared leases."""
    return shared(_busy)


def _busy() -> World:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    for day in (1, 2):
        world.ended("bob", seconds=1800, at=datetime(2026, 2, day, 9, tzinfo=UTC), duration_s=7200)
    close_period(period=period_of(datetime(2026, 2, 5, tzinfo=UTC)), actor=None, now=world.now)
    line = InvoiceLine.objects.get()
    note = propose_note(
        line=line, amount_micro=line.amount_micro, is_credit=True, reason="fault", lease=None,
        actor=world.user("finance"), now=world.now,
    )  # fmt: skip
    approve_note(note=note, actor=world.user("alice"), now=world.now)
    _prepay(world)
    world.ended("charlie", seconds=60, at=world.now - timedelta(hours=2))
    for _ in range(2):
        world.active("bob", "l40s-quarter")
    world.active("charlie", "h100-3g-40gb", count=2)
    meter_all(now=world.now)
    settle_wallets(now=world.now)
    world.token("bob")
    return world


def _prepay(world: World) -> None:
    """Let charlie's team run on a balance, so that something is settled and something held."""
    who = {"team": world.team("language"), "actor": world.user("finance"), "rights": world.rights("finance")}
    open_wallet(**who, at_zero="block", now=world.now)  # type: ignore[arg-type]
    move_by_hand(**who, kind="top_up", amount_micro=10**9, reference="transfer", now=world.now)  # type: ignore[arg-type]
    text = f"team,balance,currency,as_of\nlanguage,7.50,EUR,{world.now:%Y-%m-%d}\n"
    apply_balances(text, digest=text_digest(text), rights=world.rights("finance"), now=world.now)
    text = (
        "source,external_id,team,description,start,end,gpus,amount,currency\n"
        "cloud,i-1,language,A100,2026-03-01T00:00:00Z,2026-03-01T01:00:00Z,8,10,EUR\n"
    )
    apply_usage(text, digest=text_digest(text), rights=world.rights("finance"), now=world.now)


def test_an_honest_installation_keeps_every_promise(busy: World) -> None:
    assert broken() == []
    call_command("check_invariants")


def test_every_promise_has_a_corruption_that_it_is_tried_with() -> None:
    assert set(CORRUPTIONS) == {invariant.name for invariant in INVARIANTS}


def test_each_corruption_is_found_and_named(busy: World) -> None:
    missed = []
    for name, corrupt in CORRUPTIONS.items():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for table, constraint in EXCLUSIONS:
                cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(corrupt)
            if name not in {breach.invariant.name for breach in broken()}:
                missed.append(name)
            transaction.set_rollback(True)

    assert missed == []


def test_the_command_fails_and_says_which(busy: World, capsys: pytest.CaptureFixture[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE quotas_quota SET used_milli = used_milli + 1")

    with pytest.raises(CommandError, match=f"1 of {len(INVARIANTS)}"):
        call_command("check_invariants")

    assert "quota_counters" in capsys.readouterr().err
