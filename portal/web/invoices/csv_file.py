"""An invoice as CSV: one row per line, cells that no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

from portal.billing.models import ExternalUsage, InvoiceNote
from portal.billing.selectors import InvoiceView, LineView
from portal.web.figures import MICRO
from portal.web.invoices.rows import gpu_hours

# A byte order mark, so that spreadsheets read the names as UTF-8.
MARK = "\ufeff"
HEADER = (
    "month", "invoice", "state", "team", "cost_centre", "position", "person", "flavor", "device_model",
    "leases", "seconds", "gpu_hours", "price_per_gpu_hour", "currency", "amount",
    "adjusts", "note", "corrects", "reason",
)  # fmt: skip


def invoice_csv(view: InvoiceView) -> str:
    """Return the lines of an invoice; the amounts add up to its total. Whole seconds, decimal amounts."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEADER)
    hours = gpu_hours([line.share_milli_seconds for line in view.lines])
    writer.writerows(_cells(view, line, spent) for line, spent in zip(view.lines, hours, strict=True))
    return MARK + out.getvalue()


def safe(text: str) -> str:
    """Return text that a spreadsheet shows as text, whatever it begins with."""
    cleaned = text.replace("\r", " ").replace("\n", " ")
    return "'" + cleaned if cleaned.lstrip()[:1] in ("=", "+", "-", "@", "\t", "|") and cleaned else cleaned


def _cells(view: InvoiceView, line: LineView, hours: Decimal) -> list[str]:
    invoice = view.invoice
    return [
        str(view.period),
        (invoice.number or "") if invoice else "",
        "draft" if view.is_draft else "issued",
        safe(invoice.team_name if invoice else view.team.name),
        safe(invoice.cost_centre if invoice else view.team.cost_centre),
        str(line.position),
        safe(line.person),
        safe(line.flavor),
        safe(line.device_model),
        str(line.lease_count),
        str(line.seconds),
        f"{hours:.4f}",
        amount_text(line.micro_per_hour),
        view.currency,
        amount_text(line.amount_micro),
        line.late_for,
        *map(safe, beside_cells(line.note, line.external, line.minimum_micro)),
    ]


def beside_cells(
    note: InvoiceNote | None, external: ExternalUsage | None, minimum_micro: int
) -> tuple[str, str, str]:
    """Return the number of a note, what it corrects as "202610-0003/2" (invoice and line), and why; "" for usage.

    External usage says so in place of a number, and its source and id there; so do electricity, with its kWh, and
    leases that came to their minimum charge.
    """
    if minimum_micro:
        return "minimum", "", f"minimum charge {amount_text(minimum_micro)} for a lease"
    if external is not None and external.energy_mj is not None:
        return "electricity", "", external.description
    if external is not None:
        return "external", "", f"{external.source}: {external.external_id}"
    if note is None:
        return "", "", ""
    return str(note), f"{note.line.invoice.number}/{note.line.position}", note.reason


def amount_text(micro: int) -> str:
    """Return micro-units as a plain decimal: cents, or as many places as it takes."""
    return (
        f"{Decimal(micro) / MICRO:.6f}".rstrip("0").rstrip(".")
        if micro % 10_000
        else f"{Decimal(micro) / MICRO:.2f}"
    )
