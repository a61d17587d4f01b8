"""Credit and debit notes: proposed by one, approved by another, billed in a later month, within what a line charged."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.db import IntegrityError, connection, transaction

from portal.audit.models import AuditEntry
from portal.billing.books import verify_books
from portal.billing.charges import charges_of
from portal.billing.closing import close_period
from portal.billing.focus import write_focus
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine, InvoiceNote
from portal.billing.notes import approve_note, note_sums, propose_note, reject_note, withdraw_note
from portal.billing.report import report_of
from portal.billing.selectors import invoice_view, period_of, team_spend
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.notifications.models import Notification
from portal.teams.models import Role, Team
from portal.teams.services import add_member
from portal.web.invoices.csv_file import invoice_csv
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
MARCH = datetime(2026, 3, 5, 9, tzinfo=UTC)
EUR = 1_000_000


@pytest.fixture
def world(db: None) -> World:
    """February closed with two leases of bob on one line and one of charlie; March runs, and has usage of bob."""
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    add_member(team=world.team("northwind"), user=world.user("alice"), role=Role.FINANCE, now=world.now)
    for day in (5, 6):
        world.ended("bob", "h100", seconds=7200, at=FEBRUARY.replace(day=day), duration_s=7200)
    world.ended("charlie", "h100", seconds=3600, at=FEBRUARY, duration_s=7200)
    close_period(period=period_of(FEBRUARY), actor=None, now=world.now)
    world.ended("bob", "h100", seconds=3600, at=MARCH, duration_s=7200)
    return world


def line_of(slug: str) -> InvoiceLine:
    return InvoiceLine.objects.get(invoice__team__slug=slug, invoice__period=period_of(FEBRUARY), note=None)


def propose(world: World, amount: int, slug: str = "perception", **more: object) -> InvoiceNote:
    given = {"line": line_of(slug), "is_credit": True, "reason": "The fan was broken", "lease": None} | more
    return propose_note(amount_micro=amount, actor=world.user("finance"), now=world.now, **given)  # type: ignore[arg-type]


def test_a_note_goes_from_its_proposal_onto_the_next_invoice_and_into_every_file(world: World) -> None:
    perception, march = world.team("perception"), period_of(MARCH)
    lease = line_of("perception").total.team.leases.earliest("pk")
    before = team_spend([perception.pk], march, now=world.now)[perception.pk]
    closed = list(Invoice.objects.values_list("number", "digest", "total_micro"))

    note = propose(world, 2 * EUR, lease=lease)
    assert [row.user.username for row in Notification.objects.filter(kind="note.proposed")] == ["alice"]
    assert team_spend([perception.pk], march, now=world.now)[perception.pk] == before
    approve_note(note=note, actor=world.user("alice"), now=world.now)
    approve_note(
        note=propose(world, 1 * EUR, "language", is_credit=False), actor=world.user("alice"), now=world.now
    )

    draft = invoice_view(perception, march, now=world.now)
    assert draft.lines[-1].amount_micro == -2 * EUR
    assert draft.total_micro == sum(line.amount_micro for line in draft.lines)
    assert team_spend([perception.pk], march, now=world.now)[perception.pk] == before - 2 * EUR
    running = report_of(march, list(Team.objects.all()), now=world.now).whole

    april = datetime(2026, 4, 2, tzinfo=UTC)
    close_period(period=march, actor=None, now=april)

    view = invoice_view(perception, period_of(MARCH), now=april)
    assert [line.note and line.note.number for line in view.lines] == [None, "202603-N0002"]
    assert {(i.team.slug, i.number) for i in Invoice.objects.filter(period=march)} == {
        ("language", "202603-0001"),
        ("perception", "202603-0002"),
    }
    whole = report_of(BillingPeriod.objects.get(pk=march.pk), list(Team.objects.all()), now=april).whole
    assert whole.amount_micro == running.cost_micro == sum(i.total_micro for i in march.invoices.all())
    assert note_sums([march], [perception.pk]) == {(march.pk, perception.pk): -2 * EUR}
    march.refresh_from_db()
    assert [check.name for check in verify_books(march, now=april) if check.wrong] == []
    assert broken() == []
    february = Invoice.objects.filter(period=period_of(FEBRUARY))
    assert list(february.values_list("number", "digest", "total_micro")) == closed
    written = list(csv.DictReader(io.StringIO(invoice_csv(view).lstrip("\ufeff"))))[-1]
    corrected = f"{line_of('perception').invoice.number}/1"
    assert (written["amount"], written["note"], written["corrects"]) == ("-2.00", "202603-N0002", corrected)
    assert (written["adjusts"], written["reason"]) == ("2026-02", "The fan was broken")
    file = io.BytesIO()
    write_focus(file, march, charges_of(march, Team.objects.all()))
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    found = next(row for row in rows if row["ChargeDescription"].startswith("Credit note 202603-N0002"))
    assert (found["ChargeClass"], found["BilledCost"], found["ResourceId"]) == (
        "Correction",
        "-2.000000",
        lease.uid,
    )
    assert (found["PricingQuantity"], found["PricingUnit"], found["ConsumedQuantity"]) == ("", "", "")
    assert found["ChargePeriodStart"] == "2026-02-01T00:00:00Z"
    billed = sum(Decimal(row["BilledCost"]) for row in rows)
    assert billed == Decimal(sum(i.total_micro for i in march.invoices.all())) / EUR
    assert AuditEntry.objects.filter(action__startswith="note.").count() == 4


def test_a_note_stays_within_what_its_line_and_its_lease_charged(world: World) -> None:
    line = line_of("perception")
    lease = line.total.team.leases.earliest("pk")
    foreign = line_of("language").total.team.leases.get()
    half = line.amount_micro // 2

    for amount, more, field in (
        (line.amount_micro + 10_000, {}, "amount"),
        (half + 10_000, {"lease": lease}, "amount"),
        (half, {"lease": foreign}, "lease"),
        (line.amount_micro + 10_000, {"is_credit": False}, "amount"),
        (10_001, {}, "amount"),
        (0, {}, "amount"),
        (10_000, {"reason": " "}, "reason"),
    ):
        with pytest.raises(Invalid) as refused:
            propose(world, amount, **more)
        assert set(refused.value.fields) == {field}
    first = propose(world, half, lease=lease)
    with pytest.raises(Invalid):
        propose(world, 10_000, lease=lease)
    propose(world, half)
    with pytest.raises(Invalid):
        propose(world, 10_000)
    withdraw_note(note=first, actor=world.user("finance"), now=world.now)
    # A debit that only waits makes no room for a credit.
    propose(world, half, is_credit=False)
    with pytest.raises(Invalid):
        propose(world, half + 10_000)
    propose(world, half)


def test_who_proposed_a_note_never_decides_it_and_a_decision_is_the_last(world: World) -> None:
    note = propose(world, EUR)

    for act in (approve_note, reject_note):
        with pytest.raises(Forbidden):
            act(note=note, actor=world.user("finance"), note_text="fine", now=world.now)
    with pytest.raises(Forbidden):
        withdraw_note(note=note, actor=world.user("alice"), now=world.now)
    with pytest.raises(Invalid):
        reject_note(note=note, actor=world.user("alice"), note_text=" ", now=world.now)
    reject_note(note=note, actor=world.user("alice"), note_text="Not ours", now=world.now)

    with pytest.raises(Conflict):
        approve_note(note=note, actor=world.user("alice"), now=world.now)
    assert note_sums([period_of(MARCH)], [note.team_id]) == {}


PROPOSED = "(SELECT max(id) FROM billing_invoicenote WHERE state = 'proposed')"
APPROVED = "(SELECT max(id) FROM billing_invoicenote WHERE state = 'approved' AND number IS NULL)"
ISSUED = "(SELECT max(id) FROM billing_invoicenote WHERE number IS NOT NULL)"
ALICE = "(SELECT id FROM accounts_user WHERE username = 'alice')"
OPEN = "(SELECT id FROM billing_billingperiod WHERE state = 'open' ORDER BY starts_at LIMIT 1)"
CLOSED = "(SELECT min(id) FROM billing_billingperiod WHERE state = 'closed')"
NEW = """INSERT INTO billing_invoicenote (uid, line_id, team_id, currency, amount_micro, reason, state, proposed_by_id,
 proposed_at, decision_note) SELECT 'nte-x', line_id, team_id, currency, {amount}, 'x', '{state}', proposed_by_id,
 now(), '' FROM billing_invoicenote WHERE id = {of}"""
ATTACKS = {
    "approve by who proposed it": "UPDATE billing_invoicenote SET state = 'approved', decided_by_id = proposed_by_id,"
    f" decided_at = now(), period_id = {OPEN} WHERE id = {PROPOSED}",
    "approve by nobody": "UPDATE billing_invoicenote SET state = 'approved', decided_at = now(),"
    f" period_id = {OPEN} WHERE id = {PROPOSED}",
    "approve into a closed month": f"UPDATE billing_invoicenote SET state = 'approved', decided_by_id = {ALICE},"
    f" decided_at = now(), period_id = {CLOSED} WHERE id = {PROPOSED}",
    "raise what waits": f"UPDATE billing_invoicenote SET amount_micro = amount_micro - 10000 WHERE id = {PROPOSED}",
    "raise what is approved": "UPDATE billing_invoicenote SET amount_micro = amount_micro - 10000"
    f" WHERE id = {APPROVED}",
    "move what is approved": f"UPDATE billing_invoicenote SET period_id = {CLOSED} WHERE id = {APPROVED}",
    "take back what is approved": "UPDATE billing_invoicenote SET state = 'withdrawn', decided_by_id = proposed_by_id,"
    f" period_id = NULL WHERE id = {APPROVED}",
    "number a note by hand": "UPDATE billing_invoicenote SET number = '202603-N0009',"
    f" issued_line_id = (SELECT min(id) FROM billing_invoiceline) WHERE id = {APPROVED}",
    "change why a note was issued": f"UPDATE billing_invoicenote SET reason = 'y' WHERE id = {ISSUED}",
    "change what a note was issued for": f"UPDATE billing_invoicenote SET amount_micro = -10000 WHERE id = {ISSUED}",
    "take an issued note off its line": "UPDATE billing_invoicenote SET number = NULL, issued_line_id = NULL"
    f" WHERE id = {ISSUED}",
    "delete a note": f"DELETE FROM billing_invoicenote WHERE id = {PROPOSED}",
    "delete an issued note": f"DELETE FROM billing_invoicenote WHERE id = {ISSUED}",
    "insert beyond the line": NEW.format(amount="-9990000000", state="proposed", of=PROPOSED),
    "insert a debit beyond the line": NEW.format(amount="9990000000", state="proposed", of=PROPOSED),
    "insert less than a cent": NEW.format(amount="-1", state="proposed", of=PROPOSED),
    "insert what is approved": NEW.format(amount="-10000", state="approved", of=PROPOSED),
    "insert for another team": NEW.format(amount="-10000", state="proposed", of=PROPOSED).replace(
        "line_id, team_id, currency, -10000", "line_id, (SELECT max(id) FROM teams_team), currency, -10000"
    ),
    "insert a note to a note": NEW.format(amount="-10000", state="proposed", of=ISSUED).replace(
        "SELECT 'nte-x', line_id", "SELECT 'nte-x', issued_line_id"
    ),
    "empty the notes": "TRUNCATE billing_invoicenote CASCADE",
}


def test_the_database_refuses_every_other_way_to_correct(world: World) -> None:
    approve_note(note=propose(world, EUR), actor=world.user("alice"), now=world.now)
    april = datetime(2026, 4, 2, tzinfo=UTC)
    close_period(period=period_of(MARCH), actor=None, now=april)
    world.now = april
    approve_note(note=propose(world, EUR), actor=world.user("alice"), now=april)
    propose(world, EUR)

    for name, attack in ATTACKS.items():
        with pytest.raises(IntegrityError) as refused, transaction.atomic():
            execute("SET CONSTRAINTS ALL IMMEDIATE; " + attack)
        assert refused.value.__cause__.sqlstate in {"23514", "23503"}, name  # type: ignore[union-attr]
    assert broken() == []


FORGERIES = (
    "UPDATE billing_invoicenote SET reason = 'x' WHERE number IS NOT NULL",
    "UPDATE billing_invoicenote SET decided_at = now() WHERE number IS NOT NULL",
)


def test_a_note_changed_past_all_guards_breaks_the_chain(world: World) -> None:
    approve_note(note=propose(world, EUR), actor=world.user("alice"), now=world.now)
    april = datetime(2026, 4, 2, tzinfo=UTC)
    march = period_of(MARCH)
    close_period(period=march, actor=None, now=april)

    for change in FORGERIES:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(change)
            cursor.execute("SET LOCAL session_replication_role = origin")
            wrong = {check.name for check in verify_books(march, now=april) if check.wrong}
            transaction.set_rollback(True)
        assert wrong == {"chain_is_whole"}
