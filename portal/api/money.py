"""Usage and invoices as they go out."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from portal.api.representations import Row
from portal.api.wire import instant, money
from portal.billing.checklist import CloseItem, close_items
from portal.billing.energy import KWH_MJ
from portal.billing.external_lines import mean_micro_per_kwh
from portal.billing.models import BillingPeriod, PeriodState, UsageRecord
from portal.billing.rehearsal import Rehearsal
from portal.billing.selectors import InvoiceView, LineView, currency
from portal.web.invoices.rehearsal import difference_text


def usage_row(record: UsageRecord) -> Row:
    """Return a usage record; lease, user, flavor, team, ``rate``, ``discount``, ``refund``, ``late_for`` at hand."""
    return {
        "id": record.pk,
        "lease": record.lease.uid,
        "team": record.team.slug,
        "user": record.lease.user.username,
        "flavor": record.lease.flavor.slug,
        "starts_at": instant(record.span.lower),
        "ends_at": instant(record.span.upper),
        "seconds": record.seconds,
        "share_milli": record.share_milli,
        "share_milli_seconds": record.share_milli_seconds,
        "price_per_hour": money(record.micro_per_hour, record.currency),
        "price_per_gib_hour": money(record.rate.micro_per_gib_hour, record.currency),
        "discount": record.discount.name if record.discount else None,
        "refund": str(record.refund.cause) if record.refund else None,
        "minimum": money(record.minimum_micro, record.currency),
        "adjusts": month_of(record.late_for) if record.late_for else None,
    }


def month_of(period: BillingPeriod) -> str:
    """Return a period's name, e.g. ``2026-11``."""
    return str(period)


def period_row(period: BillingPeriod) -> Row:
    """Return a month of accounts."""
    return {
        "month": month_of(period),
        "state": str(period.state),
        "zone": period.zone,
        "starts_at": instant(period.starts_at),
        "ends_at": instant(period.ends_at),
        "closed_at": instant(period.closed_at),
    }


def period_detail(period: BillingPeriod, *, now: datetime) -> Row:
    """Return a month with what has to hold before it is closed."""
    items = [] if period.state == PeriodState.CLOSED else close_items(period, now=now)
    return period_row(period) | {"checks": [_check_row(item) for item in items]}


def _check_row(item: CloseItem) -> Row:
    return {
        "code": item.code,
        "is_met": item.is_met,
        "must": item.must,
        "figure": item.figure,
        "sentence": item.sentence,
    }


def rehearsal_row(rehearsal: Rehearsal) -> Row:
    """Return a rehearsed close with its checks and the invoices that it would issue."""
    unit = currency()
    return {
        "month": month_of(rehearsal.period),
        "compared_with": month_of(rehearsal.before) if rehearsal.before else None,
        "seen": rehearsal.seen,
        "can_close": rehearsal.can_close,
        "records": rehearsal.records,
        "unmetered": rehearsal.unmetered,
        "total": money(rehearsal.total_micro, unit),
        "ledger": money(rehearsal.ledger_micro, unit),
        "checks": [_check_row(item) for item in rehearsal.items],
        "invoices": [
            {
                "team": invoice.team.slug,
                "lines": invoice.lines,
                "share_milli_seconds": invoice.share_milli_seconds,
                "amount": money(invoice.amount_micro, invoice.currency),
                "notes": money(invoice.notes_micro, invoice.currency),
                "before": money(invoice.before_micro, invoice.currency),
                "differences": [
                    {
                        "kind": str(part.kind),
                        "amount": money(part.amount_micro, invoice.currency),
                        "share_milli_seconds": part.share_milli_seconds,
                        "sentence": difference_text(part, invoice.currency),
                    }
                    for part in invoice.differences
                ],
            }
            for invoice in rehearsal.invoices
        ],
    }


def line_row(line: LineView, currency: str) -> Row:
    """Return one line of an invoice."""
    return {
        "position": line.position,
        "key": line.key,
        "person": line.person,
        "flavor": line.flavor,
        "device_model": line.device_model,
        "price_per_hour": money(line.micro_per_hour, currency),
        "lease_count": line.lease_count,
        "seconds": line.seconds,
        "share_milli_seconds": line.share_milli_seconds,
        "amount": money(line.amount_micro, currency),
        "adjusts": line.late_for or None,
        "note": line.note.uid if line.note else None,
        "minimum": money(line.minimum_micro or None, currency),
        "labels": line.labels or [],
        "external": (
            {
                "source_name": line.external.source,
                "id": line.external.external_id,
                "imported_by": line.external.book.uid,
                "starts_at": instant(line.external.starts_at),
                "ends_at": instant(line.external.ends_at),
            }
            if line.external and line.external.energy_mj is None
            else None
        ),
        "electricity": (
            {
                "kwh": f"{Decimal(line.external.energy_mj) / KWH_MJ:.6f}",
                "basis": line.external.basis,
                "price_per_kwh": money(mean_micro_per_kwh(line.external), currency),
                "posted_by": line.external.book.uid,
                "starts_at": instant(line.external.starts_at),
                "ends_at": instant(line.external.ends_at),
            }
            if line.external and line.external.energy_mj
            else None
        ),
    }


def invoice_detail(view: InvoiceView) -> Row:
    """Return a team's month with its lines."""
    invoice = view.invoice
    return {
        "team": view.team.slug,
        "month": month_of(view.period),
        "number": invoice.number if invoice else None,
        "is_draft": view.is_draft,
        "total": money(view.total_micro, view.currency),
        "issued_at": instant(invoice.issued_at) if invoice else None,
        "cost_centre": invoice.cost_centre if invoice else view.team.cost_centre,
        "accruing": money(view.accruing_micro, view.currency),
        "lines": [line_row(line, view.currency) for line in view.lines],
    }
