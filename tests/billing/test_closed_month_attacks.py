"""Whoever speaks SQL to the database cannot change a closed month either: every attack is refused by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import DjangoDbBlocker

from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine
from portal.billing.selectors import period_of
from portal.common.invariants import broken
from tests.portal.builders import World, build_world

FEBRUARY, MARCH = datetime(2026, 2, 5, 9, tzinfo=UTC), datetime(2026, 3, 5, 9, tzinfo=UTC)
CLOSED = "(SELECT id FROM billing_billingperiod WHERE state = 'closed' ORDER BY starts_at DESC LIMIT 1)"
OPEN = "(SELECT id FROM billing_billingperiod WHERE state = 'open' ORDER BY starts_at LIMIT 1)"
ISSUED = "(SELECT min(id) FROM billing_invoice WHERE is_issued)"
DRAFT = "(SELECT min(id) FROM billing_invoice WHERE NOT is_issued)"
CLOSED_LINE = f"(SELECT min(id) FROM billing_invoiceline WHERE invoice_id = {ISSUED})"
OF_STATE = "FROM billing_usagerecord u JOIN billing_billingperiod p ON p.id = u.period_id WHERE p.state ="
CLOSED_USAGE = f"(SELECT min(u.id) {OF_STATE} 'closed')"
OPEN_USAGE = f"(SELECT min(u.id) {OF_STATE} 'open')"
LEASE = f"(SELECT min(u.lease_id) {OF_STATE} 'closed')"
CARD = "(SELECT id FROM catalog_ratecard WHERE is_default)"

INVOICE = (
    "INSERT INTO billing_invoice (uid, period_id, team_id, number, team_name, cost_centre, currency, total_micro,"
    " is_issued, issued_at) SELECT 'inv-x', {period}, {team}, {number}, 'X', '', '{currency}', {total}, {issued},"
    " {at} FROM billing_invoice WHERE is_issued ORDER BY id LIMIT 1"
)
USAGE = (
    "INSERT INTO billing_usagerecord (lease_id, team_id, period_id, rate_id, late_for_id, span, seconds,"
    " share_milli, share_milli_seconds, micro_per_hour, currency, recorded_at)"
    " SELECT lease_id, team_id, {period}, rate_id, {late}, {span}, 60, share_milli, 60 * share_milli,"
    " {price}, {currency}, now() FROM billing_usagerecord"
    f" WHERE id = {CLOSED_USAGE}"
)
LINE = (
    "INSERT INTO billing_invoiceline (invoice_id, position, person, flavor, device_model, micro_per_hour,"
    " lease_count, seconds, share_milli_seconds, amount_micro) VALUES ({invoice}, 99, '', '', '', 1, 1, 1, 1, 1)"
)
RATE = (
    "INSERT INTO catalog_rate (card_id, device_model_id, micro_per_hour, valid, created_at)"
    " SELECT {card}, device_model_id, 1, {valid}, now() FROM catalog_rate ORDER BY id LIMIT 1"
)
PERIOD = "INSERT INTO billing_billingperiod (month, starts_at, ends_at, zone, state, closed_at) VALUES ({})"
EVENT = "INSERT INTO leases_leaseevent (lease_id, was, now, at, reason) VALUES ({lease}, '{was}', '{now}', '{at}', '')"
OTHER_TEAM = "(SELECT max(id) FROM teams_team)"
JAN, FEB, MAR = "2026-01-20 09:00Z", "2026-02-20 09:00Z", "2026-03-02 09:00Z"


def _invoice(period: str = CLOSED, team: str = OTHER_TEAM, currency: str = "EUR", *, issued: bool) -> str:
    return INVOICE.format(
        period=period,
        team=team,
        currency=currency,
        number="'202602-0009'" if issued else "NULL",
        total=0,
        issued="true" if issued else "false",
        at="now()" if issued else "NULL",
    )


def _usage(
    span: str,
    period: str = CLOSED,
    late: str = "NULL",
    price: str = "micro_per_hour",
    currency: str = "currency",
) -> str:
    at = f"tstzrange('{span}', '{span}'::timestamptz + interval '60 s')"
    return USAGE.format(period=period, late=late, span=at, price=price, currency=currency)


def _set(table: str, pk: str, **columns: str) -> str:
    return (
        f"UPDATE {table} SET "
        + ", ".join(f"{name} = {value}" for name, value in columns.items())
        + f" WHERE id = {pk}"
    )


ATTACKS = {
    # Invoices
    "insert an issued invoice": _invoice(issued=True),
    "insert an issued invoice in another currency": _invoice(team="team_id", currency="USD", issued=True),
    "insert a draft": _invoice(issued=False),
    "insert an issued invoice into an open month": _invoice(period=OPEN, issued=True),
    "issue a draft of an open month": _set(
        "billing_invoice", DRAFT, is_issued="true", number="'202603-0001'", issued_at="now()"
    ),
    "move a draft into the month": _set("billing_invoice", DRAFT, period_id=CLOSED),
    "move an invoice out of the month": _set("billing_invoice", ISSUED, period_id=OPEN),
    "give an invoice to another team": _set("billing_invoice", ISSUED, team_id=OTHER_TEAM),
    "change an invoice's number": _set("billing_invoice", ISSUED, number="'202602-0077'"),
    "change an invoice's currency": _set("billing_invoice", ISSUED, currency="'USD'"),
    "change an invoice's total": _set("billing_invoice", ISSUED, total_micro="total_micro + 10000"),
    "change an invoice's names": _set("billing_invoice", ISSUED, team_name="'Y'", cost_centre="'Z'"),
    "change an invoice's instant": _set("billing_invoice", ISSUED, issued_at="now()"),
    "make an invoice a draft again": _set("billing_invoice", ISSUED, is_issued="false"),
    "delete an invoice": f"DELETE FROM billing_invoice WHERE id = {ISSUED}",
    # Lines
    "insert a line": LINE.format(invoice=ISSUED),
    "move a draft's line into an issued invoice": f"UPDATE billing_invoiceline SET invoice_id = {ISSUED},"
    f" position = 99 WHERE invoice_id = {DRAFT}",
    "move an issued line into a draft": _set(
        "billing_invoiceline", CLOSED_LINE, invoice_id=DRAFT, position="99"
    ),
    "change a line's amount": _set("billing_invoiceline", CLOSED_LINE, amount_micro="amount_micro + 10000"),
    "change a line's seconds": _set("billing_invoiceline", CLOSED_LINE, seconds="seconds + 1"),
    "change a line's words": _set("billing_invoiceline", CLOSED_LINE, person="'x'", flavor="'y'"),
    "change a line's price": _set("billing_invoiceline", CLOSED_LINE, micro_per_hour="1"),
    "make a line an adjustment": _set("billing_invoiceline", CLOSED_LINE, late_for_id=CLOSED),
    "delete a line": f"DELETE FROM billing_invoiceline WHERE id = {CLOSED_LINE}",
    # Totals
    "change a total": "UPDATE billing_usagetotal SET seconds = seconds + 1",
    "change a day": "UPDATE billing_usageday SET share_milli_seconds = 0",
    "delete a total": "DELETE FROM billing_usagetotal",
    "delete a day": "DELETE FROM billing_usageday",
    "insert a day": "INSERT INTO billing_usageday (total_id, day, seconds, share_milli_seconds)"
    " SELECT max(id), '2026-02-09', 0, 0 FROM billing_usagetotal",
    "take a total off its line": "UPDATE billing_usagetotal SET line_id = NULL WHERE line_id IS NOT NULL",
    "put a total on a line of another team": "UPDATE billing_usagetotal SET line_id ="
    f" (SELECT min(id) FROM billing_invoiceline WHERE invoice_id = {DRAFT}) WHERE line_id IS NULL",
    # Usage
    "insert usage": _usage(FEB),
    "insert usage of the closed month into an open one": _usage(FEB, period=OPEN),
    "insert an adjustment into the closed month": _usage(JAN, late=CLOSED),
    "insert an adjustment for an open month": _usage(MAR, period=OPEN, late=OPEN),
    "insert an adjustment at another price": _usage(FEB, period=OPEN, late=CLOSED, price="1"),
    "insert an adjustment in another currency": _usage(FEB, period=OPEN, late=CLOSED, currency="'USD'"),
    "bill a second again as an adjustment": USAGE.format(
        period=OPEN,
        line="NULL",
        late=CLOSED,
        price="micro_per_hour",
        currency="currency",
        span="tstzrange(lower(span), lower(span) + interval '60 s')",
    ),
    "move open usage into the month": _set("billing_usagerecord", OPEN_USAGE, period_id=CLOSED),
    "put an open total onto a closed line": "UPDATE billing_usagetotal SET line_id ="
    f" {CLOSED_LINE} WHERE line_id IS NULL",
    "make open usage an adjustment": _set("billing_usagerecord", OPEN_USAGE, late_for_id=CLOSED),
    "move closed usage into an open month": _set("billing_usagerecord", CLOSED_USAGE, period_id=OPEN),
    "change usage of an open month": _set("billing_usagerecord", OPEN_USAGE, recorded_at="now()"),
    "write an invoice's digest": _set("billing_invoice", DRAFT, digest="sha256('x')"),
    "delete closed usage": f"DELETE FROM billing_usagerecord WHERE id = {CLOSED_USAGE}",
    # Periods
    "reopen the month": _set("billing_billingperiod", CLOSED, state="'open'", closed_at="NULL"),
    "set the month back to closing": _set("billing_billingperiod", CLOSED, state="'closing'"),
    "shift the month's bounds": _set("billing_billingperiod", CLOSED, ends_at="ends_at + interval '1 day'"),
    "change when the month was closed": _set("billing_billingperiod", CLOSED, closed_at="now()"),
    "delete the month": f"DELETE FROM billing_billingperiod WHERE id = {CLOSED}",
    "shift an open month over the closed one": _set(
        "billing_billingperiod", OPEN, starts_at="starts_at - interval '1 day'"
    ),
    "close an open month at once": _set("billing_billingperiod", OPEN, state="'closed'", closed_at="now()"),
    "insert a month that overlaps": PERIOD.format(
        "'2026-05-01', '2026-02-10Z', '2026-02-20Z', 'UTC', 'open', NULL"
    ),
    "insert a month before the closed one": PERIOD.format(
        "'2025-12-01', '2025-12-01Z', '2026-01-01Z', 'UTC', 'open', NULL"
    ),
    "insert a closed month": PERIOD.format(
        "'2026-06-01', '2026-06-01Z', '2026-07-01Z', 'UTC', 'closed', now()"
    ),
    "open a month that begins at another zone's midnight": PERIOD.format(
        "'2026-06-01', '2026-05-31 16:00Z', '2026-06-30 16:00Z', 'Asia/Shanghai', 'open', NULL"
    ),
    "open a month that ends a day early": PERIOD.format(
        "'2026-06-01', '2026-06-01Z', '2026-06-30Z', 'UTC', 'open', NULL"
    ),
    "call the closed month another": _set("billing_billingperiod", CLOSED, month="'2027-01-01'"),
    "call an open month another": _set("billing_billingperiod", OPEN, month="'2027-01-01'"),
    "move an open month to another zone": _set("billing_billingperiod", OPEN, zone="'Asia/Shanghai'"),
    "set another zone for months that the books have": "INSERT INTO billing_monthzone (since, name, set_at)"
    " VALUES ('2026-02-01', 'Asia/Shanghai', now())",
    "set a zone that does not exist": "INSERT INTO billing_monthzone (since, name, set_at)"
    " VALUES ('2030-01-01', 'Asia/Nowhere', now())",
    "set a zone from within a month": "INSERT INTO billing_monthzone (since, name, set_at)"
    " VALUES ('2030-01-02', 'Asia/Shanghai', now())",
    # What money is made from
    "insert an old start of a lease": EVENT.format(lease=LEASE, was="preparing", now="active", at=FEB),
    "insert an old end of a lease": EVENT.format(lease=LEASE, was="active", now="ending", at=FEB),
    "insert an event in a month without books": EVENT.format(
        lease=LEASE, was="preparing", now="active", at="2025-06-01Z"
    ),
    "change a lease's event": "UPDATE leases_leaseevent SET at = at - interval '1 s'",
    "delete a lease's events": "DELETE FROM leases_leaseevent",
    "insert a price of the closed month": RATE.format(
        card=CARD, valid="tstzrange('2020-02-01Z', '2020-03-01Z')"
    ),
    "insert a price without a begin": RATE.format(card=CARD, valid="tstzrange(NULL, '2020-03-01Z')"),
    "insert a price of the closed month on another card": "WITH card AS (INSERT INTO catalog_ratecard (name,"
    " currency, is_default) VALUES ('Other', 'EUR', false) RETURNING id) "
    + RATE.format(card="card.id", valid="tstzrange('2026-02-01Z', '2026-03-01Z')")
    .replace("FROM catalog_rate", "FROM card, catalog_rate")
    .replace("ORDER BY id", "ORDER BY catalog_rate.id"),
    "change a price": "UPDATE catalog_rate SET micro_per_hour = 1",
    "end a price in the closed month": "UPDATE catalog_rate SET valid = tstzrange(lower(valid), '2026-02-10Z')",
    "begin a price later": "UPDATE catalog_rate SET valid = tstzrange('2026-02-10Z', upper(valid))",
    "delete a price": "DELETE FROM catalog_rate",
    "change a card's currency": f"UPDATE catalog_ratecard SET currency = 'USD' WHERE id = {CARD}",
    "make a card of another currency the default": "WITH off AS (UPDATE catalog_ratecard SET is_default = false)"
    " INSERT INTO catalog_ratecard (name, currency, is_default) VALUES ('Dollars', 'USD', true)",
    "delete the card": f"DELETE FROM catalog_ratecard WHERE id = {CARD}",
    "give a lease to another team": f"UPDATE leases_lease SET team_id = {OTHER_TEAM} WHERE id = {LEASE}",
    "give a lease to another person": "UPDATE leases_lease SET user_id = (SELECT max(id) FROM accounts_user)"
    f" WHERE id = {LEASE}",
    "change what a lease pays": f"UPDATE leases_lease SET price_milli = 1 WHERE id = {LEASE}",
    "change a lease's share": f"UPDATE leases_lease SET share_milli = share_milli + 1 WHERE id = {LEASE}",
    "change a lease's flavor": "UPDATE leases_lease SET flavor_id = (SELECT max(id) FROM catalog_flavor)"
    f" WHERE id = {LEASE}",
    "delete a lease": f"DELETE FROM leases_lease WHERE id = {LEASE}",
    "delete a team": f"DELETE FROM teams_team WHERE id = (SELECT team_id FROM billing_invoice WHERE id = {ISSUED})",
    "delete a person": f"DELETE FROM accounts_user WHERE id = (SELECT user_id FROM leases_lease WHERE id = {LEASE})",
    "delete a flavor": f"DELETE FROM catalog_flavor WHERE id = (SELECT flavor_id FROM leases_lease WHERE id = {LEASE})",
    "delete a device model": "DELETE FROM fleet_devicemodel",
    "change the audit": "UPDATE audit_auditentry SET action = 'x'",
    "delete the audit": "DELETE FROM audit_auditentry",
}
COLUMNS = {
    "lease_id": "(SELECT max(id) FROM leases_lease)",
    "team_id": OTHER_TEAM,
    "rate_id": "(SELECT max(id) FROM catalog_rate)",
    "span": "tstzrange(lower(span), upper(span) + interval '1 s')",
    "seconds": "seconds + 1",
    "share_milli": "share_milli + 1",
    "share_milli_seconds": "share_milli_seconds + 1",
    "micro_per_hour": "micro_per_hour + 1",
    "currency": "'USD'",
    "recorded_at": "now()",
}
for kind, row in (("closed", CLOSED_USAGE), ("open", OPEN_USAGE)):
    for column, value in COLUMNS.items():
        ATTACKS[f"change {column} of {kind} usage"] = _set("billing_usagerecord", row, **{column: value})
# A trigger or check, a foreign key, an exclusion: never a value that was only left out.
REFUSED_BY = {"23514", "23503", "23P01"}
EMPTIED = (
    "billing_billingperiod", "billing_monthzone", "billing_invoice", "billing_invoiceline", "billing_usagerecord",
    "leases_lease", "leases_leaseevent", "leases_requestevent", "catalog_rate", "catalog_ratecard",
    "audit_auditentry", "teams_team", "accounts_user",
)  # fmt: skip
ATTACKS |= {f"empty {table}": f"TRUNCATE {table} CASCADE" for table in EMPTIED}


@pytest.fixture(scope="module")
def closed_months(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """Books in a transaction around all tests of this file: each of them works within a savepoint of its own."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield _books()
        transaction.set_rollback(True)


@pytest.fixture
def books(closed_months: World, db: None) -> World:
    return closed_months


def _books() -> World:
    """January and February closed, March with usage and a draft that somebody wrote by hand."""
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    for month in (1, 2):
        world.ended("bob", seconds=600, at=datetime(2026, month, 5, 9, tzinfo=UTC))
    world.ended("charlie", seconds=777, at=FEBRUARY)
    world.ended("bob", seconds=60, at=MARCH)
    for month in (1, 2):
        close_period(
            period=period_of(datetime(2026, month, 5, tzinfo=UTC)),
            actor=world.user("finance"),
            now=world.now,
        )
    meter_all(now=world.now)
    march = BillingPeriod.objects.get(state="open")
    draft = Invoice.objects.create(
        period=march, team=world.team("speech"), team_name="Speech", currency="EUR"
    )
    InvoiceLine.objects.create(
        invoice=draft, position=1, person="x", flavor="y", device_model="z", micro_per_hour=1,
        lease_count=0, seconds=0, share_milli_seconds=0, amount_micro=0,
    )  # fmt: skip
    return world


def _try(attack: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(attack)
        return int(cursor.rowcount)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_database_refuses_to(books: World, attack: str) -> None:
    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        assert _try(ATTACKS[attack]) != 0, "the attack hit no row, so that it proves nothing"

    assert refused.value.__cause__.sqlstate in REFUSED_BY  # type: ignore[union-attr]


def test_the_books_are_whole_after_all_attacks(books: World) -> None:
    for attack in ATTACKS.values():
        with contextlib.suppress(IntegrityError), transaction.atomic():
            _try(attack)

    assert broken() == []


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("UPDATE billing_invoice SET number = '202603-0002'", "not numbered from 1"),
        ("UPDATE billing_usagetotal SET line_id = NULL", "usage on no line"),
    ],
)
def test_a_month_does_not_close_over(books: World, attack: str, why: str) -> None:
    # The close's own steps, with a mistake put in before the last one.
    march = BillingPeriod.objects.get(state="open")
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("UPDATE billing_billingperiod SET state = 'closing' WHERE id = %s", [march.pk])
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE billing_usagetotal SET line_id = (SELECT max(id) FROM billing_invoiceline) WHERE period_id = %s",
            [march.pk],
        )
        cursor.execute(
            "UPDATE billing_invoice SET is_issued = true, number = '202603-0001', issued_at = now(), digest = ''"
            " WHERE period_id = %s",
            [march.pk],
        )
        cursor.execute(attack + " WHERE period_id = %s", [march.pk])
        cursor.execute("SET LOCAL session_replication_role = origin")
        with pytest.raises(IntegrityError, match=why), transaction.atomic():
            cursor.execute(
                "UPDATE billing_billingperiod SET state = 'closed', closed_at = now() WHERE id = %s",
                [march.pk],
            )
        transaction.set_rollback(True)


def test_open_months_go_on(books: World) -> None:
    books.ended("bob", seconds=60, at=books.now - timedelta(hours=1))

    assert meter_all(now=books.now) == 1
