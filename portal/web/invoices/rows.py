"""Invoices as pages show them: amounts that add up as printed, and the chain from a line down to events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction

from django.db.models import QuerySet, Sum
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from portal.billing.energy import KWH_MJ, EnergyBasis
from portal.billing.external_lines import external_sums, mean_micro_per_kwh
from portal.billing.line_labels import LineLabels
from portal.billing.metering import events_by_lease
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    InvoiceNote,
    RefundCause,
    UsageRecord,
    UsageTotal,
)
from portal.billing.notes import note_sums
from portal.billing.selectors import InvoiceView, LineView
from portal.catalog.pricing import MINOR_MICRO, SHARE_HOUR, apportion, exact_micro, to_minor
from portal.catalog.selectors import shown_names
from portal.common.moments import span
from portal.leases.models import Lease, LeaseEvent
from portal.leases.states import LeaseState
from portal.teams.labels import tags_text
from portal.teams.models import Team
from portal.web.discounts import discount_label
from portal.web.figures import gib, gpus, money
from portal.web.leases.timeline import why_text

SIX = Decimal("0.000001")
HOURS_UNIT = 10_000  # GPU-hours are printed to four places


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One line as printed: GPU-hours x price = amount; ``late_for`` is the month that an adjustment belongs to.

    A line with a ``note`` bills a credit or debit note, in ``late_for`` is then the month that it corrects.
    """

    position: int
    person: str
    flavor: str
    device_model: str
    leases: int
    length: str | None
    gpu_hours: Decimal
    price: Decimal | None
    amount: Decimal | None
    key: str
    late_for: date | None
    note: InvoiceNote | None = None
    external: ExternalUsage | None = None
    per_kwh: Decimal | None = None
    minimum: Decimal | None = None


@dataclass(frozen=True, slots=True)
class AccruingLease:
    """A lease whose cost is not on a line yet."""

    uid: str
    person: str
    flavor: str
    state: str
    since: datetime | None
    amount: Decimal | None


@dataclass(frozen=True, slots=True)
class TeamInvoice:
    """A team's month as its page shows it."""

    lines: list[PrintedLine]
    total: Decimal | None
    gpu_hours: Decimal
    leases: int
    accruing: list[AccruingLease]
    accruing_total: Decimal | None
    expected: Decimal | None


@dataclass(frozen=True, slots=True)
class FiledRow:
    """What a part of a line is filed under; ``cost_centre`` "" is that of the team."""

    cost_centre: str
    project: str
    tags: str
    gpu_hours: Decimal


@dataclass(frozen=True, slots=True)
class EventStep:
    """One lease event, as the timeline include takes it."""

    title: str
    at: datetime
    text: str
    tone: str
    icon: str


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One usage record with the events of its lease: where the seconds come from."""

    lease: str
    name: str
    node: str
    starts_at: datetime
    ends_at: datetime
    seconds: int
    share: str | None
    gpu_seconds: Decimal
    exact: Decimal
    agent_seconds: Decimal | None
    refund: str
    minimum: Decimal | None
    per_gib: Decimal | None
    memory: str
    discount: str
    steps: list[EventStep]


def gpu_hours(quantities: Sequence[int]) -> list[Decimal]:
    """Return share-milli-seconds as hours of one whole device to four places; they add up as printed."""
    parts = [Fraction(quantity * HOURS_UNIT * MINOR_MICRO, SHARE_HOUR) for quantity in quantities]
    return [Decimal(part // MINOR_MICRO) / HOURS_UNIT for part in apportion(parts)]


def gpu_seconds(share_milli_seconds: int) -> Decimal:
    """Return share-milli-seconds as seconds of one whole device, exactly."""
    return Decimal(share_milli_seconds) / 1000


def bill(view: InvoiceView) -> TeamInvoice:
    """Return the printed form of a team's month; cents of running leases add up to their total too."""
    cents = apportion([Fraction(micro) for _lease, micro in view.accruing])
    hours = gpu_hours([line.share_milli_seconds for line in view.lines])
    words = shown_names(line.flavor for line in view.lines)
    return TeamInvoice(
        lines=[_line(row, spent, words) for row, spent in zip(view.lines, hours, strict=True)],
        total=money(view.total_micro),
        gpu_hours=sum(hours, Decimal(0)),
        leases=sum(line.lease_count for line in view.lines),
        accruing=[
            _accruing(lease, micro) for (lease, _exact), micro in zip(view.accruing, cents, strict=True)
        ],
        accruing_total=money(sum(cents)),
        expected=money(view.total_micro + sum(cents)),
    )


def usage_rows(records: Sequence[UsageRecord]) -> list[UsageRow]:
    """Return usage records with their leases' events, in one query for all events."""
    leases = list({record.lease_id: record.lease for record in records}.values())
    events = events_by_lease(leases)
    return [_usage(record, events[record.lease_id]) for record in records]


def filed_rows(labels: LineLabels) -> list[FiledRow]:
    """Return what the parts of a line are filed under; the GPU-hours of the parts add up as printed."""
    hours = gpu_hours([label["share_milli_seconds"] for label in labels])
    return [
        FiledRow(label["cost_centre"], label["project"], tags_text(label["tags"]), spent)
        for label, spent in zip(labels, hours, strict=True)
    ]


def micro_text(exact: Fraction) -> Decimal:
    """Return an exact amount in micro-units as a decimal amount to six places."""
    return (Decimal(exact.numerator) / Decimal(exact.denominator) / 1_000_000).quantize(SIX)


def month_totals(periods: Sequence[BillingPeriod], teams: QuerySet[Team]) -> dict[int, dict[int, int]]:
    """Return by period and team what its lines and notes add up to in micro-units: two queries, rounded as invoices."""
    exact: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    rows = (
        UsageTotal.objects.filter(period__in=periods, team__in=teams)
        .values_list("period_id", "team_id", "micro_per_hour")
        .annotate(quantity=Sum("share_milli_seconds"))
        .order_by()
    )
    for period_id, team_id, price, quantity in rows:
        exact[period_id, team_id] += exact_micro(quantity, price)
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for (period_id, team_id), amount in exact.items():
        found[period_id][team_id] = to_minor(amount)
    for (period_id, team_id), noted in note_sums(periods, teams).items():
        found[period_id][team_id] = found[period_id].get(team_id, 0) + noted
    for (period_id, team_id), outside in external_sums(periods, teams).items():
        found[period_id][team_id] = found[period_id].get(team_id, 0) + outside
    return found


def _line(line: LineView, hours: Decimal, words: dict[str, str]) -> PrintedLine:
    return PrintedLine(
        position=line.position,
        person=line.person,
        flavor=beside_text(line.external) if line.external else words[line.flavor],
        device_model=line.device_model,
        leases=line.lease_count,
        length=span(line.seconds),
        gpu_hours=hours,
        price=money(line.micro_per_hour),
        amount=money(line.amount_micro),
        key=line.key,
        late_for=date.fromisoformat(f"{line.late_for}-01") if line.late_for else None,
        note=line.note,
        external=line.external,
        per_kwh=per_kwh(line.external) if line.external else None,
        minimum=money(line.minimum_micro) if line.minimum_micro else None,
    )


def beside_text(row: ExternalUsage) -> str:
    """Return what a line without usage of ours bills: electricity in the reader's language, else as its file has it."""
    if row.energy_mj is None:
        return row.description
    text = (
        _("Electricity, %(kwh)s kWh measured")
        if row.basis == EnergyBasis.MEASURED
        else _("Electricity, %(kwh)s kWh estimated")
    )
    return text % {"kwh": number_format(Decimal(row.energy_mj) / KWH_MJ, 3)}


def per_kwh(row: ExternalUsage) -> Decimal | None:
    """Return what a kWh of a line of electricity costs on average, in the currency; None for other lines."""
    micro = mean_micro_per_kwh(row)
    return None if micro is None else (Decimal(micro) / 1_000_000).quantize(SIX)


def _accruing(lease: Lease, micro: int) -> AccruingLease:
    return AccruingLease(
        uid=lease.uid,
        person=str(lease.user),
        flavor=lease.flavor.shown_name,
        state=lease.state,
        since=lease.activated_at,
        amount=money(micro),
    )


def _usage(record: UsageRecord, events: Sequence[LeaseEvent]) -> UsageRow:
    lease = record.lease
    agent = lease.agent_active_ms
    return UsageRow(
        lease=lease.uid,
        name=str(lease.user),
        node=lease.flavor.device_model.name,
        starts_at=record.span.lower,
        ends_at=record.span.upper,
        seconds=record.seconds,
        share=gpus(record.share_milli),
        gpu_seconds=gpu_seconds(record.share_milli_seconds),
        exact=micro_text(exact_micro(record.share_milli_seconds, record.micro_per_hour)),
        agent_seconds=None if agent is None else Decimal(agent) / 1000,
        discount=discount_label(record.discount) if record.discount else "",
        refund=str(RefundCause(record.refund.cause).label) if record.refund else "",
        minimum=money(record.minimum_micro),
        per_gib=money(record.rate.micro_per_gib_hour) if record.rate.micro_per_gib_hour else None,
        memory=gib(lease.flavor.memory_mib * lease.count),
        steps=[step_of(event) for event in events],
    )


TONES = {
    LeaseState.ACTIVE: ("good", "activity"),
    LeaseState.INTERRUPTED: ("warn", "plug-connected"),
    LeaseState.ENDING: ("warn", "hourglass"),
    LeaseState.FAILED: ("bad", "circle-x"),
    LeaseState.CLEANING: ("quiet", "wash"),
}


def step_of(event: LeaseEvent) -> EventStep:
    """Return a step of a lease in the reader's language."""
    tone, icon = TONES.get(LeaseState(event.now), ("quiet", "check"))
    return EventStep(str(LeaseState(event.now).label), event.at, why_text(event), tone, icon)
