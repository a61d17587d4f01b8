"""Opening balances by CSV: previewed row by row, applied whole, undone by a counter-import, kept by the database."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from time import process_time

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.audit.models import AuditEntry
from portal.billing import opening_balances
from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.imports import MOST_ROWS, imports_in_sight, text_digest, undoable, visible_import
from portal.billing.models import FinanceImport, OpeningBalance
from portal.billing.opening_balances import (
    BalancePreview,
    apply_balances,
    preview_balances,
    undo_balances,
)
from portal.billing.periods import period_of, set_month_zone
from portal.budgets.models import Wallet, WalletMovement
from portal.budgets.periods import BudgetStretch
from portal.budgets.wallets import close_wallet, move_by_hand, open_wallet
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound, PeriodClosed
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.leases.budget_standing import standings
from portal.teams.models import Team
from portal.teams.selectors import Rights
from tests.portal.builders import World, build_world

NOW = datetime(2026, 10, 16, 12, tzinfo=UTC)
HEAD = "team,balance,used,currency,as_of\n"
GOOD = (
    HEAD
    + "vision,6000.00,1250.50,EUR,2026-10-01\nLanguage,,310,eur,2026-10-01\nrobotics,25,,EUR,2026-10-02\n"
)
EUR = 1_000_000


@pytest.fixture
def world(db: None) -> World:
    """The middle of a month; two teams have a wallet."""
    world = build_world(NOW)
    for slug in ("vision", "robotics"):
        open_wallet(
            team=world.team(slug), actor=world.user("finance"), rights=world.rights("finance"), at_zero="block",
            now=NOW,
        )  # fmt: skip
    return world


def applied(world: World, text: str = GOOD) -> FinanceImport:
    return apply_balances(text, digest=text_digest(text), rights=world.rights("finance"), now=NOW)


def faults(world: World, *rows: str, now: datetime = NOW) -> list[list[str]]:
    """Return by row what a preview says is wrong, as "column: sentence"."""
    found = preview_balances(HEAD + "\n".join(rows), rights=world.rights("finance"), now=now)
    return [[f"{column}: {why}" for column, why in line.faults] for line in found.lines]


def checked() -> None:
    """Let the database look at what it would look at when the transaction ends."""
    execute("SET CONSTRAINTS ALL IMMEDIATE", [])
    execute("SET CONSTRAINTS ALL DEFERRED", [])


def executed(sql: str, *values: object) -> None:
    execute(sql, list(values))
    checked()


def refused(sql: str, *values: object) -> str:
    """Return the constraint by which the database refuses a statement."""
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        executed(sql, *values)
    return str(caught.value.__cause__.diag.constraint_name)  # type: ignore[union-attr]


def test_a_preview_says_what_each_row_does_and_writes_nothing(world: World) -> None:
    move_by_hand(
        team=world.team("vision"), actor=world.user("finance"), rights=world.rights("finance"), kind="top_up",
        amount_micro=5 * EUR, reference="transfer 1", now=NOW,
    )  # fmt: skip

    found = preview_balances(GOOD, rights=world.rights("finance"), now=NOW)

    assert found.is_ready
    assert (found.digest, found.first) == (text_digest(GOOD), date(2026, 10, 1))
    assert (found.balance_micro, found.used_micro) == (6025 * EUR, 1560_500_000)
    assert [(one.number, one.team, one.was_micro, one.new_micro, one.used_micro) for one in found.lines] == [
        (2, world.team("vision"), 5 * EUR, 6005 * EUR, 1250_500_000),
        (3, world.team("language"), None, None, 310 * EUR),
        (4, world.team("robotics"), 0, 25 * EUR, None),
    ]
    assert not FinanceImport.objects.exists()
    assert WalletMovement.objects.count() == 1


def test_what_was_previewed_is_applied_as_movements_counted_by_budgets_and_audited(world: World) -> None:
    book = applied(world)

    assert {
        (m.wallet.team.slug, m.kind, m.amount_micro, m.reference) for m in WalletMovement.objects.all()
    } == {
        ("vision", "top_up", 6000 * EUR, f"opening balance {book.uid}"),
        ("robotics", "top_up", 25 * EUR, f"opening balance {book.uid}"),
    }
    period = book.period
    months = BudgetStretch(date(2026, 10, 1), date(2026, 11, 1), period.starts_at, period.ends_at)
    root, vision = standings([(world.team(s).pk, months) for s in ("northwind", "vision")], now=NOW)
    assert (root.spent, vision.spent) == (1560_500_000, 1250_500_000)
    entry = AuditEntry.objects.get(action="import.applied")
    assert (entry.target, entry.detail["digest"], entry.detail["rows"]) == (book.uid, book.digest, 3)
    checked()
    assert not broken()
    assert not any(check.wrong for check in verify_books(period, now=NOW))


def test_one_faulty_row_keeps_the_whole_file_out_and_is_named(world: World) -> None:
    text = GOOD + "nobody,1,,EUR,2026-10-01\n"

    with pytest.raises(Invalid) as caught:
        applied(world, text)

    assert caught.value.fields == {
        "csv": ["Line 5, team: There is no such team. Give its slug, or its name where only one has it."]
    }
    assert not FinanceImport.objects.exists()
    assert not WalletMovement.objects.exists()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("vision,-1,,EUR,2026-10-01", "balance: Write an amount of zero or more"),
        ("vision,1e3,,EUR,2026-10-01", "balance: Write an amount of zero or more"),
        ("vision,NaN,,EUR,2026-10-01", "balance: Write an amount of zero or more"),
        ("vision,1.005,,EUR,2026-10-01", "balance: Give whole cents."),
        ("vision,,9999999999,EUR,2026-10-01", "used: Write an amount of zero or more"),
        ("vision,999999999.99,999999999.99,EUR,2026-10-01", ""),
        ("vision,,,EUR,2026-10-01", "balance: Give a balance, what was used so far, or both."),
        ("language,1,,EUR,2026-10-01", "balance: This team has no wallet."),
        ("vision,1,,USD,2026-10-01", "currency: The books are kept in EUR."),
        ("vision,1,,,2026-10-01", "currency: The books are kept in EUR."),
        ("vision,1,,EUR,2026-02-30", "as_of: Write the day like"),
        ("vision,1,,EUR,01.10.2026", "as_of: Write the day like"),
        ("vision,1,,EUR,2026-10-17", "as_of: This day is yet to come."),
        ("vision,1,,EUR,1999-11-17", "as_of: This month is not open. Open are: 2026-10."),
        ("=cmd|'/c calc'!A1,1,,EUR,2026-10-01", "team: There is no such team."),
        ("vision,1,,EUR,2026-10-01,more", ": There are more cells than columns."),
        ("vision", "balance: Give a balance"),
    ],
)
def test_each_fault_is_named_with_its_column(world: World, row: str, said: str) -> None:
    (found,) = faults(world, row)

    assert found[0].startswith(said) if said else not found


def test_a_team_stands_in_a_file_once_and_in_a_month_once(world: World) -> None:
    first, second = faults(world, "vision,1,,EUR,2026-10-01", "Vision,2,,EUR,2026-10-01")
    assert (first, second) == ([], ["team: This team is on line 2 already."])

    book = applied(world)

    (again,) = faults(world, "vision,1,,EUR,2026-10-03")
    assert again == [f"team: The opening balance of this team was imported already, by {book.uid}."]


def test_who_is_slower_with_the_same_teams_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[BalancePreview] = []

    def held_up(text: str, *, rights: Rights, now: datetime) -> BalancePreview:
        looks.append(preview_balances(text, rights=rights, now=now))
        if len(looks) == 2:  # the last look before it is written; no row holds back whoever gives no balance
            monkeypatch.undo()
            applied(world, HEAD + "Language,,300,EUR,2026-10-01\n")
        return looks[-1]

    monkeypatch.setattr(opening_balances, "preview_balances", held_up)
    with pytest.raises(Conflict, match="just imported"):
        applied(world)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names the columns"),
        ("\n\n", "names the columns"),
        ("team,balance\nvision,1\n", "These columns are missing: currency, as_of."),
        (HEAD.replace("used", "colour"), "each of these columns once at most"),
        (HEAD, "1 to 10000 rows"),
        (HEAD + "vision,1,,EUR,2026-10-01\n" * (MOST_ROWS + 1), "1 to 10000 rows"),
        (HEAD + '"vision,1,,EUR,2026-10-01\n', "This is no CSV file: line 2"),
    ],
)
def test_what_is_no_such_file_is_refused(world: World, text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        preview_balances(text, rights=world.rights("finance"), now=NOW)

    assert said in str(caught.value.fields["csv"])


def test_the_same_file_twice_is_refused_naming_the_first_whatever_its_line_ends(world: World) -> None:
    book = applied(world)
    same = "\ufeff" + GOOD.replace("\n", "\r\n") + "\r\n"

    with pytest.raises(Conflict, match=f"imported already: {book.uid}, by Finance on 2026-10-16"):
        applied(world, same)

    assert FinanceImport.objects.count() == 1


def test_semicolons_bring_decimal_commas(world: World) -> None:
    text = "Team;Balance;Currency;As_of\r\nvision;6000,50;EUR;2026-10-01\r\n"

    book = applied(world, text)

    assert book.balances.get().balance_micro == 6000_500_000


def test_a_file_that_changed_since_its_preview_is_not_applied(world: World) -> None:
    with pytest.raises(Invalid) as caught:
        apply_balances(
            GOOD.replace("6000", "9000"), digest=text_digest(GOOD), rights=world.rights("finance"), now=NOW
        )

    assert "not the file that was previewed" in caught.value.fields["digest"]
    assert not FinanceImport.objects.exists()


def test_undoing_reverses_every_row_and_lets_the_file_come_again(world: World) -> None:
    book = applied(world)

    undone = undo_balances(book, rights=world.rights("finance"), now=NOW + timedelta(hours=1))

    book.refresh_from_db()
    assert (book.is_live, undone.reverses, undone.is_live) == (False, book, False)
    assert set(Wallet.objects.values_list("balance_micro", flat=True)) == {0}
    assert WalletMovement.objects.count() == 4  # nothing is taken out of the ledger
    assert OpeningBalance.objects.aggregate(n=Sum("used_micro"))["n"] == 0
    assert AuditEntry.objects.filter(action="import.undone", target=book.uid).exists()
    assert not undoable(book)
    assert not undoable(undone)
    for one in (book, undone):
        with pytest.raises(Conflict, match="undone already"):
            undo_balances(one, rights=world.rights("finance"), now=NOW)
    assert applied(world).is_live
    checked()
    assert not broken()


def test_what_was_spent_since_keeps_an_import_from_being_undone(world: World) -> None:
    book = applied(world)
    move_by_hand(
        team=world.team("robotics"), actor=world.user("finance"), rights=world.rights("finance"), kind="pay_out",
        amount_micro=EUR, reference="back", now=NOW,
    )  # fmt: skip

    with pytest.raises(Conflict, match="The wallet of Robotics has not so much left"):
        undo_balances(book, rights=world.rights("finance"), now=NOW)

    assert Wallet.objects.get(team__slug="vision").balance_micro == 6000 * EUR
    assert FinanceImport.objects.count() == 1


def test_a_closed_month_takes_no_import_and_gives_none_back(world: World) -> None:
    book = applied(world)
    later = datetime(2026, 11, 3, 9, tzinfo=UTC)
    close_period(period=period_of(NOW), actor=None, now=later)

    with pytest.raises(PeriodClosed):
        undo_balances(book, rights=world.rights("finance"), now=later)
    (found,) = faults(world, "language,,1,EUR,2026-10-20", now=later)

    assert found == ["as_of: This month is not open. Open are: 2026-11."]
    assert refused(
        "INSERT INTO billing_financeimport (uid, kind, period_id, digest, currency, rows, is_live, made_by_id, made_at)"
        " SELECT 'imp-x', kind, period_id, 'x', currency, rows, true, made_by_id, made_at FROM billing_financeimport"
    ) == "closed_month"  # fmt: skip


def test_a_month_with_an_import_keeps_its_zone(world: World) -> None:
    applied(world)

    with pytest.raises(Invalid) as caught:
        set_month_zone(zone="Asia/Shanghai", since=date(2026, 10, 1), actor=None, now=NOW)

    assert "2026-11" in caught.value.fields["since"]


def test_a_closed_wallet_and_a_wallet_that_would_hold_too_much_are_faults(world: World) -> None:
    close_wallet(
        team=world.team("robotics"), actor=world.user("finance"), rights=world.rights("finance"), now=NOW
    )

    (found,) = faults(world, "robotics,1,,EUR,2026-10-01")

    assert found == ["balance: This wallet is closed. Open it again first."]


def test_only_finance_of_the_organisation_sees_and_does_it(world: World) -> None:
    book = applied(world)
    stranger = Team.objects.create(name="Elsewhere", slug="elsewhere", created_at=NOW, lineage=[])

    for name in ("alice", "operator", "charlie"):
        with pytest.raises(Forbidden):
            preview_balances(GOOD, rights=world.rights(name), now=NOW)
        with pytest.raises(Forbidden):
            undo_balances(book, rights=world.rights(name), now=NOW)
        with pytest.raises(NotFound):
            visible_import(world.rights(name), book.uid)
        assert not imports_in_sight(world.rights(name)).exists()
    assert list(imports_in_sight(world.rights("finance"))) == [book]
    (found,) = faults(world, f"{stranger.slug},,1,EUR,2026-10-01")
    assert found[0].startswith("team: There is no such team.")  # as a missing one


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE billing_openingbalance SET used_micro = 0",
        "UPDATE billing_openingbalance SET is_live = false",
        "DELETE FROM billing_openingbalance",
        "UPDATE billing_financeimport SET is_live = false",
        "UPDATE billing_financeimport SET digest = 'x'",
        "DELETE FROM billing_financeimport",
        "INSERT INTO billing_openingbalance (book_id, line, team_id, period_id, used_micro, as_of, is_live)"
        " SELECT book_id, 99, (SELECT id FROM teams_team WHERE slug = 'speech'), period_id, 10000, as_of, true"
        " FROM billing_openingbalance LIMIT 1",
        "INSERT INTO billing_financeimport (uid, kind, period_id, digest, currency, rows, is_live, made_by_id, made_at)"
        " SELECT 'imp-x', kind, period_id, 'x', currency, rows, true, made_by_id, made_at FROM billing_financeimport",
        "INSERT INTO billing_financeimport (uid, kind, period_id, digest, currency, rows, is_live, made_by_id, made_at,"
        " reverses_id) SELECT 'imp-x', kind, period_id, 'x', currency, rows, false, made_by_id, made_at, id"
        " FROM billing_financeimport",
        "TRUNCATE billing_financeimport CASCADE",
    ],
)
def test_the_database_refuses_what_no_page_offers(world: World, attack: str) -> None:
    applied(world)
    checked()

    assert refused(attack) == "books"


def test_the_database_refuses_a_balance_without_its_movement(world: World) -> None:
    book = applied(world)

    said = refused(
        "WITH made AS (INSERT INTO billing_financeimport"
        " (uid, kind, period_id, digest, currency, rows, is_live, made_by_id, made_at)"
        " SELECT 'imp-x', kind, period_id, 'x', currency, 1, true, made_by_id, made_at FROM billing_financeimport"
        " RETURNING id) SELECT 1 FROM made"
    )
    assert said == "books"
    assert refused(
        "INSERT INTO billing_openingbalance (book_id, line, team_id, period_id, used_micro, as_of, is_live)"
        " VALUES (%s, 2, %s, %s, 1, '2026-10-01', true)", book.pk, world.team("speech").pk, book.period_id,
    ) in ("opening_balance_in_cents", "books")  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["vision", "robotics", "language", "speech", "nobody", "=vision"]),
            st.sampled_from(["", "0", "0.01", "12.5", "7.005", "-3", "1,5", "x"]),
            st.sampled_from(["", "0", "3.10", "99999999999"]),
            st.sampled_from(["EUR", "eur", "USD", ""]),
            st.sampled_from(["2026-10-01", "2026-10-16", "2026-10-17", "2026-09-30", "soon"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_file_is_applied_whole_or_not_at_all_and_undone_to_the_cent(
    world: World, rows: list[tuple[str, ...]]
) -> None:
    text = HEAD + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    with transaction.atomic():
        before = list(Wallet.objects.order_by("pk").values_list("balance_micro", flat=True))
        looked = preview_balances(text, rights=world.rights("finance"), now=NOW)
        if not looked.is_ready:
            with pytest.raises(Invalid):
                applied(world, text)
            assert not FinanceImport.objects.exists()
        else:
            book = applied(world, text)
            checked()
            moved = WalletMovement.objects.aggregate(n=Sum("amount_micro"))["n"] or 0
            assert moved == looked.balance_micro
            assert OpeningBalance.objects.aggregate(n=Sum("used_micro"))["n"] in (looked.used_micro, None)
            undo_balances(book, rights=world.rights("finance"), now=NOW)
            checked()
        assert list(Wallet.objects.order_by("pk").values_list("balance_micro", flat=True)) == before
        transaction.set_rollback(True)


@pytest.mark.deep
def test_ten_thousand_rows_take_a_few_seconds(world: World) -> None:
    root = world.team("northwind")
    made = Team.objects.bulk_create(
        (
            Team(name=f"T {n}", slug=f"t-{n}", parent=root, created_at=NOW, lineage=[])
            for n in range(MOST_ROWS)
        ),
        batch_size=1000,
    )
    with connection.cursor() as cursor:
        cursor.execute("UPDATE teams_team SET lineage = ARRAY[%s, id] WHERE slug LIKE 't-%%'", [root.pk])
    text = HEAD + "".join(f"{team.slug},,{n}.50,EUR,2026-10-01\n" for n, team in enumerate(made))

    began = process_time()
    book = applied(world, text)

    assert book.balances.count() == MOST_ROWS
    assert process_time() - began < 10  # 2 s here; a square of the rows would be minutes
