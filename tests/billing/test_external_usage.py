"""External usage by CSV: previewed, billed on lines of its own, in every file, undone, kept by the database."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from time import process_time

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portal.billing import external_usage
from portal.billing.books import verify_books
from portal.billing.charges import charges_of
from portal.billing.closing import close_period
from portal.billing.conservation import capacity_of, together
from portal.billing.external_usage import apply_usage, preview_usage, undo_usage
from portal.billing.focus import COLUMNS, write_focus
from portal.billing.imports import MOST_ROWS, hold_month, text_digest
from portal.billing.label_shares import split_by_label
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, ExternalUsage, FinanceImport, Invoice
from portal.billing.notes import propose_note
from portal.billing.periods import period_of
from portal.billing.rehearsal import rehearse_close
from portal.billing.report import GroupBy, report_of
from portal.billing.selectors import invoice_view, team_spend
from portal.budgets.periods import BudgetStretch
from portal.common.errors import Conflict, Forbidden, Invalid, PeriodClosed
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.leases.budget_standing import standings
from portal.teams.models import Project, Team
from portal.web.invoices.csv_file import invoice_csv
from portal.web.reports.files import answer
from tests.portal.builders import World, build_world

NOW = datetime(2026, 10, 16, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 3, 9, tzinfo=UTC)
EUR = 1_000_000
HEAD = "source,external_id,team,person,project,tags,description,start,end,gpus,price,amount,currency\n"
GOOD = (
    HEAD
    + 'cloud-a,i-1,perception,bob,EU-1,"paper=iclr, site=b",=8 x A100,'
    + "2026-10-01T00:00:00Z,2026-10-02T00:00:00Z,8,,512.40,EUR\n"
    + "cloud-a,i-2,robotics,,,,L4,2026-10-03T10:00:00Z,2026-10-03T10:00:01Z,0.5,0.702469,,EUR\n"
    + "cloud-b,i-1,perception,,,,H100,2026-10-04T10:00:00Z,2026-10-04T11:00:00Z,2,2.50,,EUR\n"
)


@pytest.fixture
def world(db: None) -> World:
    """The middle of a month in which bob has used something of ours, too."""
    world = build_world(NOW)
    Project.objects.create(
        team=world.team("vision"), code="EU-1", name="One", cost_centre="CC-EU", created_at=NOW
    )
    world.ended("bob", "h100", seconds=3600, at=datetime(2026, 10, 5, 9, tzinfo=UTC), duration_s=7200)
    meter_all(now=NOW)
    return world


def applied(world: World, text: str = GOOD) -> FinanceImport:
    book = apply_usage(text, digest=text_digest(text), rights=world.rights("finance"), now=NOW)
    checked()
    return book


def checked() -> None:
    """Let the database look at what it would look at when the transaction ends."""
    execute("SET CONSTRAINTS ALL IMMEDIATE", [])
    execute("SET CONSTRAINTS ALL DEFERRED", [])


def executed(sql: str) -> None:
    execute(sql, [])
    checked()


def wrong(world: World) -> list[str]:
    return [text for check in verify_books(period_of(NOW), now=LATER) for text in check.wrong]


def test_a_preview_says_what_each_row_is_billed_as(world: World) -> None:
    found = preview_usage(GOOD, rights=world.rights("finance"), now=NOW)

    assert [line.faults for line in found.lines] == [[], [], []]
    # 0.5 GPUs x 1 s x 0.702469 is 0.0001: nothing, rounded once. 2 GPUs x 1 h x 2.50 is 5.00.
    assert [line.amount_micro for line in found.lines] == [512_400_000, 0, 5 * EUR]
    assert found.by_team == [(world.team("perception"), 517_400_000), (world.team("robotics"), 0)]
    assert found.first == date(2026, 10, 1)
    assert not ExternalUsage.objects.exists()


def test_it_is_on_drafts_budgets_reports_and_every_file_and_on_issued_lines(world: World) -> None:
    period, perception = period_of(NOW), world.team("perception")
    before = together(one.account for one in capacity_of(period, now=NOW)).kinds
    ours = team_spend([perception.pk], period, now=NOW)[perception.pk]
    report_before = report_of(period, list(Team.objects.all()), by=GroupBy.PERSON, now=NOW).whole

    applied(world)

    view = invoice_view(perception, period, now=NOW)
    assert [(line.flavor, line.device_model, line.amount_micro, line.seconds) for line in view.lines[-2:]] == [
        ("=8 x A100", "cloud-a", 512_400_000, 0), ("H100", "cloud-b", 5 * EUR, 0),
    ]  # fmt: skip
    assert view.total_micro == sum(line.amount_micro for line in view.lines)
    assert team_spend([perception.pk], period, now=NOW)[perception.pk] == ours + 517_400_000
    months = BudgetStretch(date(2026, 10, 1), date(2026, 11, 1), period.starts_at, period.ends_at)
    (standing,) = standings([(perception.pk, months)], now=NOW)
    assert standing.spent == ours + 517_400_000
    teams = list(Team.objects.all())
    for by in GroupBy:
        report = report_of(period, teams, by=by, tag="paper", now=NOW)
        assert report.whole.amount_micro == report_before.amount_micro + 517_400_000, by
        assert report.whole.share_milli_seconds == report_before.share_milli_seconds, by
    people = {
        row.key: row.amount_micro for row in report_of(period, teams, by=GroupBy.PERSON, now=NOW).groups
    }
    assert people[""] == 5 * EUR
    parts = split_by_label(period, charges_of(period, teams))
    assert [(c.cost_centre, c.labels.project, c.labels.tag("paper")) for c in parts if c.external][:1] == [
        ("CC-EU", "EU-1", "iclr")
    ]
    assert together(one.account for one in capacity_of(period, now=NOW)).kinds == before

    seen = rehearse_close(period, now=LATER)
    invoices = close_period(period=period, actor=None, seen=seen.seen, now=LATER)

    assert seen.total_micro == seen.ledger_micro == sum(invoice.total_micro for invoice in invoices)
    issued = Invoice.objects.get(team=perception)
    assert issued.total_micro == view.total_micro
    assert [row.billed_on.position for row in ExternalUsage.objects.filter(team=perception)] == [2, 3]  # type: ignore[union-attr]
    assert wrong(world) == []
    assert broken() == []
    shown = invoice_view(perception, period, now=LATER)
    assert [line.external.external_id for line in shown.lines if line.external] == ["i-1", "i-1"]
    lines = list(csv.DictReader(io.StringIO(invoice_csv(shown).removeprefix("\ufeff"))))
    assert [(row["flavor"], row["note"], row["reason"]) for row in lines[1:]] == [
        ("'=8 x A100", "external", "cloud-a: i-1"), ("H100", "external", "cloud-b: i-1"),
    ]  # fmt: skip
    file = io.BytesIO()
    write_focus(file, period, charges_of(period, teams))
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    assert all(list(row) == list(COLUMNS) for row in rows)
    outside = [row for row in rows if row["ResourceType"] == "External usage"]
    assert [(row["ProviderName"], row["ResourceId"], row["BilledCost"]) for row in outside] == [
        ("cloud-a", "i-1", "512.400000"), ("cloud-a", "i-2", "0.000000"), ("cloud-b", "i-1", "5.000000"),
    ]  # fmt: skip
    assert outside[0]["ChargeDescription"] == "'=8 x A100"
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal(seen.total_micro) / EUR
    for kind in ("lines.csv", "lines.xlsx", "report.pdf"):
        assert len(b"".join(answer(kind, period, teams, person="", slug="").streaming_content)) > 500  # type: ignore[arg-type]


def test_undoing_takes_it_off_every_draft_and_lets_the_ids_come_again(world: World) -> None:
    perception, period = world.team("perception"), period_of(NOW)
    before = invoice_view(perception, period, now=NOW).total_micro
    book = applied(world)

    undone = undo_usage(book, rights=world.rights("finance"), now=NOW)
    checked()

    assert invoice_view(perception, period, now=NOW).total_micro == before
    assert [row.amount_micro for row in undone.usage.all()] == [-512_400_000, 0, -5 * EUR]
    assert not ExternalUsage.objects.filter(is_live=True).exists()
    with pytest.raises(Conflict, match="undone already"):
        undo_usage(book, rights=world.rights("finance"), now=NOW)
    applied(world)
    close_period(period=period, actor=None, now=LATER)
    assert broken() == []
    assert wrong(world) == []


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("source", "", "source: Give 1 to 40 characters."),
        ("external_id", "x" * 81, "external_id: Give 1 to 80 characters."),
        ("team", "nobody", "team: There is no such team."),
        ("person", "nobody", "person: Nobody of the organisation has this user name."),
        ("project", "nothing", "project: The team has no such project."),
        ("tags", "Upper=1", "tags: "),
        ("description", "a\x07b", "description: Give 1 to 60 characters."),
        ("start", "soon", "start: Write the time like"),
        ("start", "2026-10-02T00:00:00Z", "end: The end comes after the start."),
        ("start", "2026-09-30T23:59:59Z", "start: This month is not open."),
        ("end", "2026-11-01T00:00:01Z", "end: A row ends in the month in which it starts."),
        ("end", "2026-10-31T00:00:00Z", "end: This time is yet to come."),
        ("gpus", "0", "gpus: Give a number of GPUs above zero"),
        ("gpus", "NaN", "gpus: Give a number of GPUs above zero"),
        ("gpus", "1e99", "gpus: Give a number of GPUs above zero"),
        ("gpus", "9e999999", "gpus: Give a number of GPUs above zero"),
        ("gpus", "sNaN", "gpus: Give a number of GPUs above zero"),
        ("gpus", "0.0001", "gpus: Give a number of GPUs above zero"),
        ("amount", "-5", "amount: Write an amount of zero or more"),
        ("amount", "", "amount: Give either an amount or a price"),
        ("price", "1", "amount: Give either an amount or a price"),
        ("currency", "USD", "currency: The books are kept in EUR."),
    ],
)
def test_each_fault_is_named_with_its_column(world: World, column: str, value: str, said: str) -> None:
    row = {
        "source": "cloud-a", "external_id": "i-1", "team": "perception", "person": "", "project": "", "tags": "",
        "description": "A100", "start": "2026-10-01T00:00:00Z", "end": "2026-10-02T00:00:00Z", "gpus": "8",
        "price": "", "amount": "5", "currency": "EUR",
    } | {column: value}  # fmt: skip
    out = io.StringIO()
    csv.DictWriter(out, row).writerow(row)

    (line,) = preview_usage(HEAD + out.getvalue(), rights=world.rights("finance"), now=NOW).lines

    assert f"{line.faults[0][0]}: {line.faults[0][1]}".startswith(said)


def test_a_close_refuses_a_bill_that_went_to_another_team_since_it_was_seen(world: World) -> None:
    period = period_of(NOW)
    book = applied(world)
    seen = rehearse_close(period, now=LATER).seen
    undo_usage(book, rights=world.rights("finance"), now=NOW)
    applied(world, GOOD.replace("i-1,perception,bob,EU-1", "i-1,robotics,,"))

    with pytest.raises(Conflict, match="not those that you have seen"):
        close_period(period=period, actor=None, seen=seen, now=LATER)
    assert not Invoice.objects.exists()


def test_a_file_comes_to_no_more_than_an_invoice_can_have(world: World) -> None:
    row = "cloud-a,i-{n},perception,,,,x,2026-10-01T00:00:00Z,2026-10-02T00:00:00Z,1,,600000000.00,EUR\n"
    text = HEAD + "".join(row.format(n=n) for n in range(3))

    found = preview_usage(text, rights=world.rights("finance"), now=NOW)

    assert [len(line.faults) for line in found.lines] == [0, 1, 1]


def test_an_id_of_a_source_comes_once_in_a_file_and_once_in_all(world: World) -> None:
    twice = GOOD + GOOD.splitlines()[2].replace("robotics", "vision")
    (fault,) = preview_usage(twice, rights=world.rights("finance"), now=NOW).lines[3].faults
    assert fault == ("external_id", "This id is on line 3 already.")
    book = applied(world)

    with pytest.raises(Conflict, match=f"imported already: {book.uid}"):
        applied(world)
    with pytest.raises(Invalid) as caught:
        applied(world, GOOD + "\n".join(GOOD.splitlines()[1:2]).replace("i-1", "i-9"))

    assert caught.value.fields["csv"][0] == f"Line 2, external_id: This was imported already, by {book.uid}."
    assert FinanceImport.objects.count() == 1


def test_who_is_slower_with_the_same_ids_is_told_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = GOOD.replace("512.40", "500.00")

    def held_up(month: date) -> BillingPeriod:
        monkeypatch.undo()
        applied(world, first)
        return hold_month(month)

    monkeypatch.setattr(external_usage, "hold_month", held_up)
    with pytest.raises(Conflict, match="just imported"):
        apply_usage(GOOD, digest=text_digest(GOOD), rights=world.rights("finance"), now=NOW)


def test_a_closed_month_takes_nothing_and_its_lines_take_no_note(world: World) -> None:
    book = applied(world)
    close_period(period=period_of(NOW), actor=None, now=LATER)

    with pytest.raises(PeriodClosed):
        undo_usage(book, rights=world.rights("finance"), now=LATER)
    other = GOOD.replace("i-", "j-")
    found = preview_usage(other, rights=world.rights("finance"), now=LATER)
    assert {line.faults[0][0] for line in found.lines} == {"start"}
    line = ExternalUsage.objects.filter(team=world.team("perception")).earliest("pk").billed_on
    assert line is not None
    with pytest.raises(Invalid) as caught:
        propose_note(
            line=line, amount_micro=EUR, is_credit=True, reason="x", lease=None, actor=world.user("finance"),
            now=LATER,
        )  # fmt: skip
    assert "external usage" in caught.value.fields["line"]


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE billing_externalusage SET amount_micro = 0",
        "UPDATE billing_externalusage SET is_live = false",
        "UPDATE billing_externalusage SET billed_on_id = (SELECT min(id) FROM billing_invoiceline)",
        "DELETE FROM billing_externalusage",
        "TRUNCATE billing_externalusage",
        "INSERT INTO billing_financeimport (uid, kind, period_id, digest, currency, rows, is_live, made_by_id, made_at)"
        " SELECT 'imp-x', kind, period_id, 'x', currency, rows, true, made_by_id, made_at FROM billing_financeimport",
    ],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_the_database_refuses_what_no_page_offers(world: World, attack: str, is_closed: bool) -> None:
    applied(world)
    if is_closed:
        close_period(period=period_of(NOW), actor=None, now=LATER)
    checked()

    with pytest.raises(IntegrityError), transaction.atomic():
        executed(attack)


def test_a_changed_row_behind_an_issued_line_breaks_the_chain(world: World) -> None:
    applied(world)
    close_period(period=period_of(NOW), actor=None, now=LATER)

    execute("SET LOCAL session_replication_role = replica", [])
    execute("UPDATE billing_externalusage SET external_id = 'i-7' WHERE external_id = 'i-2'", [])

    assert [check.name for check in verify_books(period_of(NOW), now=LATER) if check.wrong] == [
        "chain_is_whole"
    ]


def test_only_finance_of_the_organisation_does_it(world: World) -> None:
    for name in ("alice", "operator", "charlie"):
        with pytest.raises(Forbidden):
            preview_usage(GOOD, rights=world.rights(name), now=NOW)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["perception", "robotics", "language"]),
            st.integers(0, 10**8),
            st.booleans(),
            st.integers(1, 86_400),
            st.integers(1, 64_000),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_teams_are_billed_adds_up_to_the_cent(
    world: World, rows: list[tuple[str, int, bool, int, int]]
) -> None:
    text = HEAD
    for n, (team, cents, is_price, seconds, milli) in enumerate(rows):
        end = datetime(2026, 10, 7, 0, 0, 0, tzinfo=UTC).timestamp() + seconds
        given_as = f"{Decimal(cents) / 10**6}," if is_price else f",{Decimal(cents) / 100}"
        text += (
            f"s,{n},{team},,,,d,2026-10-07T00:00:00Z,{datetime.fromtimestamp(end, UTC).isoformat()},"
            f"{Decimal(milli) / 1000},{given_as},EUR\n"
        )
    with transaction.atomic():
        looked = preview_usage(text, rights=world.rights("finance"), now=NOW)
        assert looked.is_ready, looked.lines
        applied(world, text)
        close_period(period=period_of(NOW), actor=None, now=LATER)

        billed = sum(row.billed_on.amount_micro for row in ExternalUsage.objects.select_related("billed_on"))  # type: ignore[union-attr]
        assert billed == looked.amount_micro
        assert looked.amount_micro % 10_000 == 0
        assert broken() == []
        assert wrong(world) == []
        transaction.set_rollback(True)


@pytest.mark.deep
def test_ten_thousand_rows_take_a_few_seconds_and_one_more_is_refused(world: World) -> None:
    row = "cloud-a,i-{},perception,bob,,,A100,2026-10-01T00:00:00Z,2026-10-01T01:00:00Z,8,2.5,,EUR\n"
    text = HEAD + "".join(row.format(n) for n in range(MOST_ROWS))

    began = process_time()
    book = applied(world, text)

    assert book.usage.count() == MOST_ROWS
    assert process_time() - began < 15
    with pytest.raises(Invalid) as caught:
        applied(world, text + row.format("more"))
    assert f"{MOST_ROWS} rows" in caught.value.fields["csv"]
