"""Prepaid balances: what is held, settled and given back, what they keep from starting, what the database refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum

from portal.audit.models import AuditEntry
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.refunds import set_refund_rule
from portal.billing.settlement import amend_settlements, settle_wallets
from portal.budgets.models import Wallet, WalletHold, WalletMovement
from portal.budgets.wallets import close_wallet, move_by_hand, open_wallet
from portal.common.errors import BudgetExceeded, Conflict, Forbidden, Invalid
from portal.common.invariants import broken
from portal.common.trigger_errors import constraint_of
from portal.leases import lifecycle
from portal.leases.extending import extend_lease
from portal.leases.models import Lease, LeaseRequest
from portal.leases.wallet_holds import split
from scheduler import budgets as turn_budgets
from scheduler import snapshot
from tests.portal.builders import World, build_world

UNIT = 1_000_000
MID = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
# A whole H100 costs 3.60 an hour.


@pytest.fixture
def november(db: None) -> World:
    """The small installation in the middle of a month."""
    return build_world(MID)


def prepaid(world: World, slug: str, amount: float, at_zero: str = "block") -> Wallet:
    """Let a team run on a balance."""
    who = {"team": world.team(slug), "actor": world.user("finance"), "rights": world.rights("finance")}
    wallet = open_wallet(**who, at_zero=at_zero, now=world.now)  # type: ignore[arg-type]
    move_by_hand(
        **who, kind="top_up", amount_micro=round(amount * UNIT), reference=f"transfer {amount}", now=world.now
    )  # type: ignore[arg-type]
    return wallet


def balance(wallet: Wallet) -> tuple[int, int]:
    """Return what is there and what is held."""
    wallet.refresh_from_db()
    return wallet.balance_micro, wallet.held_micro


def end(world: World, lease: Lease, at: datetime) -> None:
    """Release a lease and meter and settle what it came to."""
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=at)
    world.gone(lease, at=at)
    meter_all(now=at)
    settle_wallets(now=at)


def test_a_lease_is_held_for_extended_and_settled_and_the_rest_comes_back(november: World) -> None:
    world = november
    wallet = prepaid(world, "vision", 10)
    lease = world.active("bob", "h100", duration_s=3600)  # perception is below vision
    assert balance(wallet) == (6_400_000, 3_600_000)

    extend_lease(lease=lease, actor=world.user("bob"), extra_s=1800, now=world.now)
    assert balance(wallet) == (4_600_000, 5_400_000)
    with pytest.raises(
        BudgetExceeded, match=r"The wallet of Vision has 4\.60 EUR left for this, and 5\.40 EUR"
    ):
        extend_lease(lease=lease, actor=world.user("bob"), extra_s=5400, now=world.now)

    meter_all(now=world.now + HOUR)
    assert settle_wallets(now=world.now + HOUR) == 0  # it runs
    end(world, lease, world.now + timedelta(minutes=20))
    assert balance(wallet) == (8_800_000, 0)
    assert settle_wallets(now=world.now + HOUR) == 0

    rows = WalletMovement.objects.order_by("number").values_list(
        "number", "kind", "amount_micro", "cost_micro"
    )
    assert list(rows) == [
        (1, "top_up", 10_000_000, None), (2, "hold", -3_600_000, None), (3, "hold", -1_800_000, None),
        (4, "settle", 4_200_000, 1_200_000),
    ]  # fmt: skip
    assert broken() == []


def test_what_is_not_covered_is_refused_waits_or_goes_on_credit_as_preemptible(november: World) -> None:
    world = november
    wallet = prepaid(world, "perception", 4)
    first = world.submit("bob", "h100", duration_s=3600)
    with pytest.raises(BudgetExceeded, match=r"Nothing starts that it does not cover\. Ask for less"):
        world.submit("bob", "h100", duration_s=3600)  # the first one waits for the same money
    world.submit("charlie", "h100", duration_s=3600)  # language is not below perception
    assert {lease.team.slug for lease in world.turn()} == {"perception", "language"}
    assert balance(wallet) == (400_000, 3_600_000)

    open_wallet(
        team=world.team("perception"), actor=world.user("finance"), rights=world.rights("finance"),
        at_zero="preemptible", now=world.now,
    )  # fmt: skip
    with pytest.raises(BudgetExceeded, match="Ask for it as preemptible"):
        world.submit("bob", "h100", duration_s=3600)
    lent = world.submit("bob", "h100", duration_s=3600, is_preemptible=True)
    world.turn()
    held = WalletHold.objects.get(lease__request=lent).amount_micro
    assert balance(wallet) == (400_000 - held, 3_600_000 + held)
    assert balance(wallet)[0] < 0
    world.ready(Lease.objects.get(request=first))


def test_what_waited_is_left_out_of_the_turn_until_there_is_a_top_up(november: World) -> None:
    world = november
    waits = world.submit("bob", "h100", duration_s=3600)
    prepaid(world, "perception", 2)
    LeaseRequest.objects.update(quote_micro=UNIT)  # by a price of before: what is held is by that of now

    seen, kept = turn_budgets.hold_back(snapshot.take(now=world.now), now=world.now)
    assert (seen.queue, [wait.claim_id for wait in kept]) == ((), [waits.pk])
    assert kept[0].reasons[0].detail["left_micro"] == 2 * UNIT
    assert world.turn() == []
    move_by_hand(
        team=world.team("perception"), actor=world.user("finance"), rights=world.rights("finance"), kind="top_up",
        amount_micro=2 * UNIT, reference="second", now=world.now,
    )  # fmt: skip
    assert [lease.request_id for lease in world.turn()] == [waits.pk]


def test_a_refund_comes_back_and_usage_written_anew_amends_the_settlement(db: None) -> None:
    world = build_world()  # a rule begins now
    wallet = prepaid(world, "perception", 10)
    set_refund_rule(
        cause="early_release", credit_milli=500, most_s=None, within_s=None, starts_at=None, actor=None
    )
    lease = world.active("bob", "h100", at=world.now, duration_s=3600)
    at = world.now + timedelta(minutes=30)
    end(world, lease, at)
    assert balance(wallet) == (9_100_000, 0)

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        UsageRecord.objects.update(seconds=900, share_milli_seconds=900_000)
        cursor.execute("SET LOCAL session_replication_role = origin")
    assert "wallets_settle_usage" in {breach.invariant.name for breach in broken()}
    assert amend_settlements([lease.pk], now=at) == 1
    assert amend_settlements([lease.pk], now=at) == 0
    assert balance(wallet) == (9_550_000, 0)
    assert WalletMovement.objects.aggregate(n=Sum("amount_micro"))["n"] == 9_550_000


def test_a_booking_that_is_given_up_gives_all_of_it_back_and_a_closed_wallet_pays_for_nothing_new(
    november: World,
) -> None:
    world = november
    wallet = prepaid(world, "perception", 10)
    who = {
        "team": world.team("perception"),
        "actor": world.user("finance"),
        "rights": world.rights("finance"),
    }
    booked = world.submit("bob", "h100", duration_s=3600, starts_at=world.now + HOUR)
    world.turn()
    assert balance(wallet) == (6_400_000, 3_600_000)
    with pytest.raises(Conflict, match="not so much"):
        move_by_hand(**who, kind="pay_out", amount_micro=7 * UNIT, reference="back", now=world.now)  # type: ignore[arg-type]
    close_wallet(**who, now=world.now)  # type: ignore[arg-type]
    lifecycle.cancel_booking(booked, actor=None, at=world.now)
    meter_all(now=world.now)
    settle_wallets(now=world.now)
    assert balance(wallet) == (10_000_000, 0)

    world.active("bob", "h100", duration_s=3600)
    assert balance(wallet) == (10_000_000, 0)
    with pytest.raises(Conflict, match="closed"):
        move_by_hand(**who, kind="top_up", amount_micro=UNIT, reference="late", now=world.now)  # type: ignore[arg-type]


def test_only_finance_keeps_wallets_and_no_reference_counts_twice(november: World) -> None:
    world = november
    team, finance = world.team("vision"), world.rights("finance")
    with pytest.raises(Forbidden):
        open_wallet(
            team=team, actor=world.user("alice"), rights=world.rights("alice"), at_zero="block", now=world.now
        )
    prepaid(world, "vision", 5)
    for amount, reference, refusal in ((5, "transfer 5", Conflict), (5, " ", Invalid), (0, "x", Invalid)):
        with pytest.raises(refusal):
            move_by_hand(
                team=team, actor=world.user("finance"), rights=finance, kind="top_up", amount_micro=amount * UNIT,
                reference=reference, now=world.now,
            )  # fmt: skip
    assert list(
        AuditEntry.objects.filter(action__startswith="wallet.")
        .values_list("action", flat=True)
        .order_by("id")
    ) == ["wallet.opened", "wallet.topped_up"]


def test_the_database_refuses_what_must_never_happen(november: World) -> None:
    world = november
    wallet = prepaid(world, "perception", 10)
    lease = world.active("bob", "h100", at=world.now - HOUR, duration_s=3600)
    end(world, lease, world.now - timedelta(minutes=30))
    other = world.active("charlie", "h100", duration_s=3600)
    live = world.active("bob", "h100", duration_s=3600)
    by = world.user("finance").pk
    new = "INSERT INTO budgets_walletmovement (wallet_id, number, balance_micro, reference, at, kind, amount_micro,"
    rest = f"({wallet.pk}, 0, 0, '', now(), "
    wallets = (
        "INSERT INTO budgets_wallet (team_id, currency, at_zero, is_open, balance_micro, held_micro, movements,"
        " version, created_at) VALUES ("
    )
    vision = world.team("vision").pk
    attacks = {
        "UPDATE budgets_walletmovement SET amount_micro = amount_micro + 1": "",
        "DELETE FROM budgets_walletmovement": "",
        "TRUNCATE budgets_walletmovement": "",
        "UPDATE budgets_wallet SET balance_micro = balance_micro + 1": "wallet_is_its_movements",
        "UPDATE budgets_wallet SET held_micro = 0": "wallet_is_its_movements",
        "UPDATE budgets_wallet SET currency = 'USD'": "wallet_is_its_movements",
        f"UPDATE budgets_wallet SET team_id = {vision}": "wallet_is_its_movements",
        "DELETE FROM budgets_wallet": "wallet_is_its_movements",
        "TRUNCATE budgets_wallet CASCADE": "wallet_is_its_movements",
        f"{wallets} {vision}, 'EUR', 'block', true, 5, 0, 0, 1, now())": "wallet_is_its_movements",
        "DELETE FROM budgets_wallethold": "wallet_is_its_movements",
        "UPDATE budgets_wallethold SET amount_micro = 0": "wallet_is_its_movements",
        f"{new} lease_id) VALUES {rest} 'hold', -1, NULL)": "movement_says_what_it_is",
        f"{new} lease_id) VALUES {rest} 'hold', -1, {other.pk})": "wallet_pays_for_it",
        f"{new} lease_id) VALUES {rest} 'hold', -1, {lease.pk})": "wallet_pays_for_it",
        f"{new} lease_id) VALUES {rest} 'hold', -90000000, {live.pk})": "wallet_covers_it",
        f"{new} lease_id, cost_micro) VALUES {rest} 'settle', 0, {lease.pk}, 1800000)": "wallet_settles_once",
        f"{new} lease_id, cost_micro) VALUES {rest} 'settle', 3600000, {live.pk}, 0)": "wallet_settles_usage",
        f"{new} lease_id, cost_micro) VALUES {rest} 'amend', 1800000, {lease.pk}, 0)": "wallet_settles_usage",
        f"{new} lease_id, cost_micro) VALUES {rest} 'amend', 1, {lease.pk}, 1800000)": "wallet_settles_once",
        f"{new} lease_id) VALUES {rest} 'amend', 90000000, {lease.pk})": "wallet_settles_usage",
        f"{new} made_by_id) VALUES {rest} 'top_up', 5, {by})": "movement_says_what_it_is",
        f"{new} note_id) VALUES {rest} 'note', 5, 1)": "wallet_note_approved",
        f"{new} made_by_id) VALUES ({wallet.pk}, 0, 0, 'x', now(), 'pay_out', -90000000, {by})": "wallet_covers_it",
    }
    refused = {}
    for attack in attacks:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
                cursor.execute(attack)
                transaction.set_rollback(True)
        except IntegrityError as error:
            refused[attack] = constraint_of(error)
    assert refused == attacks
    assert broken() == []


def test_parts_of_a_hold_add_up_to_it() -> None:
    assert split(10, [1, 1, 1]) == [4, 3, 3]
    assert sum(split(7_200_001, [1000, 571, 3])) == 7_200_001
