"""A month's lines as one file: CSV, a workbook, the report on paper, or charges as FOCUS 1.2 has them.

A file is written whole before its first byte is sent, on disk: what breaks halfway is an error, never a file that
looks whole, and no slow reader holds the database.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any, cast

from django.http import FileResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.billing.charges import Charge, charges_of
from portal.billing.energy import EnergyBy, EnergyFigures, energy_of_lines, energy_of_month
from portal.billing.focus import write_focus
from portal.billing.label_shares import split_by_label
from portal.billing.minimum_lines import LineOf, minimums
from portal.billing.models import BillingPeriod
from portal.billing.report import GroupBy, report_of
from portal.teams.labels import Labels, tags_text
from portal.teams.models import Team
from portal.web.figures import MICRO
from portal.web.invoices.csv_file import HEADER, MARK, amount_text, beside_cells, safe
from portal.web.invoices.rows import gpu_hours
from portal.web.reports.paper import pdf
from portal.web.reports.printed import report_paper
from portal.web.reports.rows import unpriced_text

# What follows the month in addresses and names of files, and the kind of content.
KINDS = {
    "lines.csv": ("CSV", "text/csv; charset=utf-8"),
    "lines.xlsx": ("XLSX", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    "report.pdf": ("PDF", "application/pdf"),
    "focus.csv": ("FOCUS", "text/csv; charset=utf-8"),
}
COLUMNS = (*HEADER, "project", "tags", "energy_kwh", "energy_basis", "carbon_g")
NUMBERS = {
    "position",
    "leases",
    "seconds",
    "gpu_hours",
    "price_per_gpu_hour",
    "amount",
    "energy_kwh",
    "carbon_g",
}


def answer(
    kind: str, period: BillingPeriod, teams: Sequence[Team], *, person: str, slug: str
) -> FileResponse:
    """Return a month of these teams, of one person where one is named, as a file to keep."""
    charges = [c for c in charges_of(period, teams) if person in ("", c.username)]
    now = timezone.now()
    file = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115 (the answer closes it when it is sent)
    if kind == "lines.csv":
        _write_csv(file, period, charges)
    elif kind == "lines.xlsx":
        _write_workbook(file, period, teams, charges, person=person, now=now)
    elif kind == "report.pdf":
        report = report_of(period, teams, username=person, now=now)
        of = [teams[0].name if slug and teams else "", person]
        used = energy_of_month(period, teams, by=EnergyBy.TEAM, person=person, now=now)[1]
        file.write(pdf(report_paper(report, of=" · ".join(filter(None, of)), energy=used)))
    else:
        write_focus(file, period, charges)
    file.seek(0)
    parts = ["berth", slug or person, str(period), kind]
    return FileResponse(
        file,
        as_attachment=True,
        filename="-".join(part for part in parts if part),
        content_type=KINDS[kind][1],
    )


def _cells(period: BillingPeriod, charges: Sequence[Charge]) -> list[tuple[str, ...]]:
    """Return a row for each line, or for each part of a line whose usage has other labels than the rest of it."""
    charges, energy = split_by_label(period, charges), energy_of_lines(period)
    hours = gpu_hours([charge.share_milli_seconds for charge in charges])
    raised = minimums(period, {charge.team.pk for charge in charges})
    return [
        (
            str(period),
            charge.number or "",
            "issued" if charge.number else "draft",
            charge.team_name,
            charge.cost_centre,
            str(charge.position),
            charge.person,
            charge.flavor,
            charge.device_model,
            str(charge.leases),
            str(charge.seconds),
            f"{spent:.4f}",
            amount_text(charge.micro_per_hour),
            charge.currency,
            amount_text(charge.amount_micro),
            charge.late_for,
            *beside_cells(charge.note, charge.external, _minimum(charge, raised)),
            charge.labels.project,
            tags_text(dict(charge.labels.tags)),
            *_energy_cells(charge, energy),
        )
        for charge, spent in zip(charges, hours, strict=True)
    ]


def _minimum(charge: Charge, raised: Mapping[LineOf, int]) -> int:
    if not charge.is_usage or charge.user is None:
        return 0
    of = (charge.team.pk, charge.user.pk, charge.flavor_id, charge.micro_per_hour, charge.late_for)
    return raised.get(of, 0)


def _energy_cells(charge: Charge, energy: Mapping[tuple[int, Labels], EnergyFigures]) -> tuple[str, str, str]:
    """Return a line's energy, how much that is worth, and its carbon; empty is unknown, and of notes there is none."""
    if not charge.is_usage:
        return "", "", ""
    found = energy.get((charge.total_id, charge.labels), EnergyFigures())
    return (
        "" if found.kwh is None else f"{found.kwh:.6f}",
        found.basis.value,
        "" if found.carbon_g is None else f"{found.carbon_g:.3f}",
    )


def _write_csv(file: IO[bytes], period: BillingPeriod, charges: Sequence[Charge]) -> None:
    out = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    out.write(MARK)
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in _cells(period, charges):
        writer.writerow(
            text if column in NUMBERS else safe(text) for column, text in zip(COLUMNS, row, strict=True)
        )
    out.detach()


def _write_workbook(
    file: IO[bytes],
    period: BillingPeriod,
    teams: Sequence[Team],
    charges: Sequence[Charge],
    *,
    person: str,
    now: datetime,
) -> None:
    """Write a sheet of teams and one of lines: numbers as numbers, and no text as a formula."""
    import xlsxwriter

    # Rows go to disk as they come, in their order.
    book = xlsxwriter.Workbook(file, {"constant_memory": True, "strings_to_formulas": False})
    head = book.add_format({"bold": True, "bottom": 1})
    cents = book.add_format({"num_format": "#,##0.00"})
    report = report_of(period, teams, by=GroupBy.TEAM, username=person, now=now)
    sheet = book.add_worksheet(_("Teams"))
    titles = (
        _("Team"),
        _("Cost centre"),
        _("Leases"),
        _("GPU-hours"),
        _("Accruing"),
        _("Amount"),
        _("Month before"),
    )
    for column, title in enumerate(titles):
        sheet.write_string(0, column, title, head)
    hours = gpu_hours([row.share_milli_seconds for row in report.groups])
    for line, (row, spent) in enumerate(zip(report.groups, hours, strict=True), start=1):
        sheet.write_string(line, 0, "\u2003" * row.depth + row.name)
        sheet.write_string(line, 1, row.cost_centre)
        sheet.write_number(line, 2, row.leases)
        sheet.write_number(line, 3, float(spent))
        sheet.write_number(line, 4, row.accruing_micro / MICRO, cents)
        sheet.write_number(line, 5, row.cost_micro / MICRO, cents)
        if row.before_micro is not None:
            sheet.write_number(line, 6, row.before_micro / MICRO, cents)
    if report.unpriced:
        sheet.write_string(len(report.groups) + 2, 0, unpriced_text(report.unpriced))
    sheet.set_column(0, 1, 24)
    sheet.set_column(2, 6, 14)
    sheet = book.add_worksheet(_("Lines"))
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, len(COLUMNS) - 1, 16)
    for column, title in enumerate(COLUMNS):
        sheet.write_string(0, column, title, head)
    for line, cells in enumerate(_cells(period, charges), start=1):
        for column, (title, text) in enumerate(zip(COLUMNS, cells, strict=True)):
            if title in NUMBERS and text:
                sheet.write_number(line, column, float(text), cents if title == "amount" else None)
            else:
                sheet.write_string(line, column, text)
    _write_energy(book, period, teams, head, person=person, now=now)
    book.close()


def _write_energy(
    book: Any, period: BillingPeriod, teams: Sequence[Team], head: Any, *, person: str, now: datetime
) -> None:
    """Write a sheet of energy by team, person, device model and day; an empty cell is unknown."""
    sheet = book.add_worksheet(_("Energy"))
    titles = (
        _("By"),
        _("Name"),
        _("Energy (kWh)"),
        _("Basis"),
        _("Measured (kWh)"),
        _("Estimated (kWh)"),
        _("Device-hours unknown"),
        _("Carbon (kg CO₂e)"),
        _("Without factor (kWh)"),
    )
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, len(titles) - 1, 18)
    for column, title in enumerate(titles):
        sheet.write_string(0, column, title, head)
    line = 0
    for by in EnergyBy:
        for row in energy_of_month(period, teams, by=by, person=person, now=now)[0]:
            line, used = line + 1, row.figures
            sheet.write_string(line, 0, str(by.label))
            sheet.write_string(line, 1, row.name)
            sheet.write_string(line, 3, str(used.basis.label))
            if used.kwh is not None:
                sheet.write_number(line, 2, used.kwh)
                sheet.write_number(line, 4, used.measured_kwh)
                sheet.write_number(line, 5, used.estimated_kwh)
                sheet.write_number(line, 8, used.no_factor_kwh)
            sheet.write_number(line, 6, used.unknown_s / 3600)
            if used.carbon_g is not None:
                sheet.write_number(line, 7, used.carbon_g / 1000)
