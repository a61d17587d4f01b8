"""Whether the books of a month are right: proved anew from events, usage, totals, lines and digests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from portal.billing.checklist import UNLIKE_EVENTS
from portal.billing.conservation import capacity_faults
from portal.billing.electricity import electricity_otherwise
from portal.billing.energy import energy_kept_otherwise
from portal.billing.line_labels import lines_labelled_otherwise
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    Invoice,
    InvoiceNote,
    NoteState,
    PeriodState,
    UsageTotal,
)
from portal.catalog.pricing import apportion, exact_micro, to_minor
from portal.common.invariants import BOOKS, broken
from portal.common.sql import fetch

# What an invoice and its lines say, hashed with the digest of the invoice before it.
_BROKEN_CHAIN = """
  SELECT number FROM (
    SELECT i AS bill, i.number, i.digest, i.period_id,
      lag(i.digest) OVER (ORDER BY p.starts_at, length(i.number), i.number) AS previous
    FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id WHERE i.is_issued) chain
  WHERE period_id = %s AND digest IS DISTINCT FROM billing_invoice_digest(bill, previous)
"""
_USAGE = """
  SELECT u.team_id, u.currency, sum(u.share_milli_seconds::numeric * u.micro_per_hour)
  FROM billing_usagerecord u WHERE u.period_id = %s GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class BooksCheck:
    """One proof: ``wrong`` names what is not as it should be, nothing when the books are right."""

    name: str
    proof: str
    wrong: tuple[str, ...]


def verify_books(period: BillingPeriod, *, now: datetime) -> list[BooksCheck]:
    """Prove a month anew, open or closed. Read-only.

    In the running month a lease may still wait to be metered: what is metered of it must lie in its active time.
    """
    is_running = period.state == PeriodState.OPEN and period.ends_at > now
    proofs: tuple[tuple[str, str, Callable[[], Iterable[str]]], ...] = (
        (
            "usage_is_active_time",
            "Usage is the active time of each lease by its events, to the second.",
            lambda: [str(uid) for (uid,) in fetch(UNLIKE_EVENTS, [period.pk, now, is_running])],
        ),
        (
            "lines_are_rated_usage",
            "Rated anew, each line and total comes to the amount that is written.",
            lambda: _rated_otherwise(period),
        ),
        (
            "totals_are_rated_usage",
            "An invoice comes to its usage records times their prices, rounded once, and its notes and external usage.",
            lambda: _summed_otherwise(period),
        ),
        (
            "numbers_are_gapless",
            "Invoices, and credit and debit notes, are numbered from 1 without a gap.",
            lambda: _gaps(period),
        ),
        (
            "chain_is_whole",
            "No invoice or line was changed since it was issued: the digests hang together.",
            lambda: [str(number) for (number,) in fetch(_BROKEN_CHAIN, [period.pk])],
        ),
        (
            "labels_are_of_usage",
            "Lines are filed under what their usage is filed under: cost centre, project and tags.",
            lambda: lines_labelled_otherwise(period),
        ),
        (
            "electricity_is_its_energy",
            "Electricity on lines is the energy of the month's hours at their prices, within what devices may draw.",
            lambda: electricity_otherwise(period),
        ),
        (
            "energy_sums_are_hours",
            "Energy and carbon by month and day are what the hours of leases come to at their factors.",
            lambda: energy_kept_otherwise(period),
        ),
        (
            "capacity_adds_up",
            "Each device's time by what it went to adds up to the time that there was; billed is what the books say.",
            lambda: capacity_faults(period, now=now),
        ),
        (
            "promises_hold",
            "What must hold of usage, totals, lines, prices and invoices of all months does.",
            lambda: [f"{breach.invariant.name}: {', '.join(breach.offenders)}" for breach in broken(BOOKS)],
        ),
    )
    return [BooksCheck(name, proof, tuple(find())) for name, proof, find in proofs]


def _rated_otherwise(period: BillingPeriod) -> list[str]:
    lines = defaultdict(list)
    rows = UsageTotal.objects.filter(period=period, line__isnull=False).select_related("line")
    for total in rows.order_by("line__position"):
        assert total.line is not None
        lines[total.line.invoice_id].append(total)
    wrong = []
    for invoice in Invoice.objects.filter(period=period, is_issued=True):
        own = lines[invoice.pk]
        amounts = apportion([exact_micro(t.share_milli_seconds, t.micro_per_hour) for t in own])
        written = [t.line.amount_micro for t in own if t.line is not None]
        wrong += [
            f"{invoice.number}, line {position}: {amount} micro-units by its usage, {line} written"
            for position, (amount, line) in enumerate(zip(amounts, written, strict=True), start=1)
            if amount != line
        ]
    return wrong


def _summed_otherwise(period: BillingPeriod) -> list[str]:
    sums = {
        (team, unit): to_minor(Fraction(int(product), 3_600_000))
        for team, unit, product in fetch(_USAGE, [period.pk])
    }
    for note in InvoiceNote.objects.filter(period=period, state=NoteState.APPROVED):
        key = (note.team_id, note.currency)
        sums[key] = sums.get(key, 0) + note.amount_micro
    for row in ExternalUsage.objects.filter(period=period, is_live=True):
        key = (row.team_id, row.currency)
        sums[key] = sums.get(key, 0) + row.amount_micro
    wrong = []
    for invoice in Invoice.objects.filter(period=period, is_issued=True):
        due = sums.pop((invoice.team_id, invoice.currency), 0)
        if due != invoice.total_micro:
            wrong.append(
                f"{invoice.number}: {due} micro-units by its usage and notes, {invoice.total_micro} written"
            )
    if period.state == PeriodState.CLOSED:
        wrong += [
            f"the team with id {team} used {due} micro-units and has no invoice"
            for (team, _u), due in sums.items()
        ]
    return wrong


def _gaps(period: BillingPeriod) -> list[str]:
    issued = list(period.invoices.filter(is_issued=True).values_list("number", flat=True))
    numbers = {int((number or "-0").rpartition("-")[2]) for number in issued}
    wrong = [f"{period}: number {n} is missing" for n in range(1, len(issued) + 1) if n not in numbers]
    notes = InvoiceNote.objects.filter(period=period, number__isnull=False).values_list("number", flat=True)
    numbered = {int((number or "-N0").rpartition("-N")[2]) for number in notes}
    wrong += [f"{period}: note N{n} is missing" for n in range(1, len(numbered) + 1) if n not in numbered]
    return wrong
