"""What an invoice and a report say on paper."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.billing.energy import EnergyBasis, EnergyFigures
from portal.billing.models import InvoiceNote
from portal.billing.report import ChargebackReport, GroupBy
from portal.billing.selectors import InvoiceView
from portal.common.templatetags.readable import amount
from portal.teams.models import Team
from portal.web.energy_figures import shown_energy
from portal.web.figures import money
from portal.web.invoices.rows import PrintedLine, bill
from portal.web.reports.paper import Paper, PaperColumn, PrintedRow
from portal.web.reports.rows import change_of, report_rows, unpriced_text


def invoice_paper(view: InvoiceView, *, now: datetime) -> Paper:
    """Return an invoice, or its draft as of now, as it is printed."""
    printed, invoice, unit = bill(view), view.invoice, view.currency
    month = date_format(view.period.month, "YEAR_MONTH_FORMAT")
    at = view.period.local(invoice.issued_at if invoice and invoice.issued_at else now)
    facts = [
        (_("Team"), invoice.team_name if invoice else view.team.name),
        (_("Cost centre"), (invoice.cost_centre if invoice else view.team.cost_centre) or "–"),
        (_("Month"), month),
        (_("Issued on") if invoice else _("As of"), date_format(at, "DATE_FORMAT")),
        (_("Total"), f"{_money(printed.total)} {unit}"),
    ]
    if view.is_draft:
        facts.append((_("Accruing"), f"{_money(printed.accruing_total)} {unit}"))
    return Paper(
        title=_("Invoice %(number)s") % {"number": invoice.number}
        if invoice
        else _("Invoice, %(month)s") % {"month": month},
        issuer=_issuer(),
        state=_("Draft: nothing here is owed yet.") if view.is_draft else "",
        day=at.date(),
        facts=facts,
        columns=[
            PaperColumn(_("Person"), figure=False, wide=True),
            PaperColumn(_("Flavor"), figure=False, wide=True),
            PaperColumn(_("Leases")),
            PaperColumn(_("GPU-hours")),
            PaperColumn(_("Price per hour")),
            PaperColumn(_("Amount")),
        ],
        rows=[
            PrintedRow(
                _note_cells(line.note, line)
                if line.note
                else _external_cells(line)
                if line.external
                else _line_cells(line)
            )
            for line in printed.lines
        ],
        total=[
            _("Total"),
            "",
            str(printed.leases),
            _hours(printed.gpu_hours, 4),
            "",
            _money(printed.total),
        ],
        notes=[
            _("Every line is rounded once to the cent, so that the lines add up to the total exactly."),
            _("Amounts are in %(currency)s. The month is that of the time zone %(zone)s.")
            % {"currency": unit, "zone": view.period.zone},
        ],
        foot=f"{view.team.name} · {month}",
    )


def _line_cells(line: PrintedLine) -> list[str]:
    what = f"{line.flavor}, {line.device_model}" + (f" ({line.late_for:%Y-%m})" if line.late_for else "")
    if line.minimum is not None:
        what += " · " + _("minimum charge %(amount)s for a lease") % {"amount": amount(line.minimum, "price")}
    return [
        line.person,
        what,
        str(line.leases),
        _hours(line.gpu_hours, 4),
        amount(line.price or Decimal(0), "price"),
        _money(line.amount),
    ]


def _external_cells(line: PrintedLine) -> list[str]:
    if line.per_kwh is not None:
        what = f"{line.flavor} × {amount(line.per_kwh, 'price')}"
        return [line.person, what, "", "", "", _money(line.amount)]
    what = _("%(what)s (%(source)s, external)") % {"what": line.flavor, "source": line.device_model}
    return [line.person, what, "", "", "", _money(line.amount)]


def _note_cells(note: InvoiceNote, line: PrintedLine) -> list[str]:
    kind = _("Credit note") if note.is_credit else _("Debit note")
    corrected = _("Invoice %(number)s, line %(position)s (%(who)s, %(flavor)s): %(why)s") % {
        "number": note.line.invoice.number,
        "position": note.line.position,
        "who": line.person,
        "flavor": line.flavor,
        "why": note.reason,
    }
    return [f"{kind} {note.number or ''}".strip(), corrected, "", "", "", _money(line.amount)]


def report_paper(report: ChargebackReport, *, of: str, energy: EnergyFigures) -> Paper:
    """Return a report as it is printed; ``of`` names the team or person that it is about, "" for all."""
    month = date_format(report.period.month, "YEAR_MONTH_FORMAT")
    whole, unit = report.whole, report.currency
    rows = report_rows(report, ordering="-cost", person="")
    facts = [(_("Month"), month), (_("Total"), f"{_money(money(whole.cost_micro))} {unit}")]
    if report.before is not None:
        facts.append((_("Month before"), f"{_money(money(whole.before_micro))} {unit}"))
    if not report.is_closed:
        facts += [
            (_("Of it accruing"), f"{_money(money(whole.accruing_micro))} {unit}"),
            (_("As of"), date_format(report.period.local(report.until), "DATE_FORMAT")),
        ]
    used = shown_energy(energy)
    facts += [
        (_("Energy"), f"{used.energy} ({used.basis})" if used.energy else used.basis),
        (_("Carbon"), used.carbon or str(EnergyBasis.UNKNOWN.label)),
    ]
    if of:
        facts.insert(0, (pgettext("report", "Of whom"), of))
    columns = [PaperColumn(str(GroupBy(report.by).label), figure=False, wide=True), PaperColumn(_("Amount"))]
    columns += [PaperColumn(_("Month before")), PaperColumn(_("Change"))] if report.before is not None else []
    columns += [PaperColumn(_("GPU-hours")), PaperColumn(_("Leases"))]
    hours = sum((row.gpu_hours for row in rows if row.depth == 0), Decimal(0))
    before = (
        [_money(money(whole.before_micro)), _change(change_of(whole))] if report.before is not None else []
    )
    return Paper(
        title=_("Chargeback report, %(month)s") % {"month": month},
        issuer=_issuer(),
        state="" if report.is_closed else _("Draft: the month is not closed."),
        day=report.period.local(report.until).date(),
        facts=facts,
        columns=columns,
        rows=[
            PrintedRow(
                [
                    row.name,
                    _money(row.cost),
                    *([_money(row.before), _change(row.change)] if report.before is not None else []),
                    _hours(row.gpu_hours, 2),
                    str(row.leases),
                ],
                row.depth,
            )
            for row in rows
        ],
        total=[
            _("Total"),
            _money(money(whole.cost_micro)),
            *before,
            _hours(hours, 2),
            str(whole.leases),
        ],
        notes=[
            *([unpriced_text(report.unpriced)] if report.unpriced else []),
            *([_("A team holds all teams below it.")] if report.by == GroupBy.TEAM else []),
            *(
                [_("Leases and GPU-hours are those on lines; what still runs counts in amounts alone.")]
                if not report.is_closed
                else []
            ),
            " ".join(
                filter(
                    None,
                    (
                        _("Energy and carbon are those of all leases of the month. They are not billed."),
                        "; ".join(used.notes),
                    ),
                )
            ),
            _("Amounts are in %(currency)s. The month is that of the time zone %(zone)s.")
            % {"currency": unit, "zone": report.period.zone},
        ],
        foot=month,
    )


def _issuer() -> str:
    found = Team.objects.filter(parent=None).order_by("pk").values_list("name", flat=True).first()
    return found or "Berth"


def _money(value: Decimal | None) -> str:
    return "–" if value is None else amount(value)


def _hours(value: Decimal, places: int) -> str:
    return number_format(value, places, use_l10n=True, force_grouping=True)


def _change(percent: int | None) -> str:
    return "–" if percent is None else f"{percent:+d} %".replace("-", "−")
