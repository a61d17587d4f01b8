"""A rehearsed close as its page shows it: each team beside the month before, and why it differs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from portal.billing.rehearsal import Difference, DifferenceKind, Rehearsal
from portal.catalog.pricing import SHARE_HOUR
from portal.common.templatetags.readable import amount
from portal.web.figures import money
from portal.web.invoices.rows import gpu_hours


@dataclass(frozen=True, slots=True)
class RehearsalRow:
    """What a team would be billed; ``why`` names the parts of the difference to the month before."""

    team: str
    slug: str
    cost_centre: str
    lines: int
    gpu_hours: Decimal
    amount: Decimal | None
    before: Decimal | None
    difference: str
    why: list[str]


def rehearsal_rows(rehearsal: Rehearsal) -> list[RehearsalRow]:
    """Return the teams of a rehearsal by name."""
    hours = gpu_hours([invoice.share_milli_seconds for invoice in rehearsal.invoices])
    rows = [
        RehearsalRow(
            team=invoice.team.name,
            slug=invoice.team.slug,
            cost_centre=invoice.team.cost_centre,
            lines=invoice.lines,
            gpu_hours=spent,
            amount=money(invoice.amount_micro),
            before=money(invoice.before_micro),
            difference=""
            if invoice.before_micro is None
            else _signed_micro(invoice.amount_micro - invoice.before_micro),
            why=[difference_text(part, invoice.currency) for part in invoice.differences],
        )
        for invoice, spent in zip(rehearsal.invoices, hours, strict=True)
    ]
    return sorted(rows, key=lambda row: row.team.lower())


def difference_text(part: Difference, unit: str) -> str:
    """Return a part of a difference in the reader's language, such as "usage +12.5 GPU-hours (+31.20 EUR)"."""
    word, changed = str(part.kind.label), f"{_signed_micro(part.amount_micro)} {unit}"
    if part.kind not in (DifferenceKind.USAGE, DifferenceKind.NEW_TEAM, DifferenceKind.NO_USE):
        return f"{word} {changed}"
    hours = Decimal(part.share_milli_seconds) / SHARE_HOUR
    said = _sign(hours) + number_format(abs(hours), 1, use_l10n=True, force_grouping=True)
    return _("%(what)s %(hours)s GPU-hours (%(amount)s)") % {"what": word, "hours": said, "amount": changed}


def _signed_micro(micro: int) -> str:
    value = money(micro) or Decimal(0)
    return _sign(value) + amount(abs(value))


def _sign(value: Decimal) -> str:
    return "−" if value < 0 else "+"
