"""Usage of devices outside Berth as it stands on invoices: a line for each row, at the amount that was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from django.db.models import QuerySet, Sum

from portal.billing.energy import KWH_MJ
from portal.billing.line_labels import labels_of_external
from portal.billing.models import BillingPeriod, ExternalUsage, Invoice, InvoiceLine
from portal.teams.models import Team


def external_usage(
    period: BillingPeriod, team_ids: Iterable[int] | None = None, *, is_drafted: bool = False
) -> QuerySet[ExternalUsage]:
    """Return what was imported into a month and not undone, in the order of files and rows; None: of every team.

    ``is_drafted`` leaves out what is on a line already.
    """
    rows = ExternalUsage.objects.filter(period=period, is_live=True)
    if team_ids is not None:
        rows = rows.filter(team__in=list(team_ids))
    if is_drafted:
        rows = rows.filter(billed_on=None)
    return rows.select_related("user", "team", "label", "book", "billed_on__invoice").order_by("pk")


def external_sums(
    periods: Iterable[BillingPeriod], team_ids: Sequence[int] | QuerySet[Team]
) -> dict[tuple[int, int], int]:
    """Return by month and team what external usage comes to in micro-units, on lines already or not."""
    rows = (
        ExternalUsage.objects.filter(period__in=list(periods), team__in=team_ids, is_live=True)
        .values_list("period_id", "team_id")
        .annotate(amount=Sum("amount_micro"))
        .order_by()
    )
    return {(period, team): amount for period, team, amount in rows}


def external_person(row: ExternalUsage) -> str:
    """Return how the person of a row is called on its line, "" where it names none."""
    return str(row.user or "")


def mean_micro_per_kwh(row: ExternalUsage) -> int | None:
    """Return what a kWh of a row of electricity costs on average, None for other rows.

    By the rounded amount for rows of before more was kept.
    """
    if not row.energy_mj or row.micro_per_kwh is not None:
        return row.micro_per_kwh
    return round(Fraction(row.amount_micro * KWH_MJ, row.energy_mj))


def line_of_external(row: ExternalUsage, invoice: Invoice, position: int) -> InvoiceLine:
    """Return the line, not saved, that external usage is billed on: what it was and where from, no usage of ours."""
    return InvoiceLine(
        invoice=invoice,
        position=position,
        person=external_person(row)[:100],
        flavor=row.description,
        device_model=row.source,
        micro_per_hour=0,
        lease_count=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=row.amount_micro,
        labels=labels_of_external(row),
    )
