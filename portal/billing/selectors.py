"""Money to look at: what leases cost so far, what a team spent, an invoice with its chain down to events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from django.db.models import QuerySet, Sum

from portal.billing.external_lines import external_person, external_sums, external_usage
from portal.billing.line_labels import LineLabels, labels_of_external, labels_of_totals
from portal.billing.metering import (
    Piece,
    active_intervals,
    at_minimum,
    discounts_of,
    events_by_lease,
    minimum_of,
    pieces,
    rates_by_model,
    refunded,
)
from portal.billing.minimum_lines import line_of, minimums
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    Invoice,
    InvoiceNote,
    PeriodState,
    UsageRecord,
    UsageTotal,
)
from portal.billing.notes import draft_notes, note_sums
from portal.billing.periods import period_of
from portal.billing.refunds import refunds_of
from portal.catalog.discounts import DiscountWanted, discounts_over
from portal.catalog.models import Discount, Flavor, Rate
from portal.catalog.pricing import (
    SHARE_HOUR,
    apportion_over,
    discounted_price,
    exact_micro,
    lowered,
    to_minor,
)
from portal.common.errors import Conflict
from portal.common.months import Months
from portal.common.sql import fetch
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.teams.models import Team

__all__ = [
    "InvoiceView",
    "LineView",
    "accruing_by_lease",
    "cost_so_far",
    "costs_and_prices",
    "discounts_at",
    "draft_lines",
    "invoice_view",
    "line_key",
    "line_usage",
    "period_of",
    "rated",
    "team_spend",
]
RUNNING = (LeaseState.ACTIVE, LeaseState.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class LineView:
    """One line: a person, a flavor and a rate; ``key`` leads to its usage records.

    ``late_for`` is the earlier month, as "2026-10", that an adjustment or a note belongs to; "" for usage of its own
    month. ``note`` is the credit or debit note that it bills, ``external`` the usage of devices outside Berth.
    ``labels`` is what it is filed under, as ``InvoiceLine.labels`` has it, None for nothing.
    ``minimum_micro`` is the minimum charge that its leases came to, each by itself; 0 where they cost their time.
    """

    position: int
    person: str
    flavor: str
    device_model: str
    micro_per_hour: int
    lease_count: int
    seconds: int
    share_milli_seconds: int
    amount_micro: int
    key: str
    late_for: str = ""
    note: InvoiceNote | None = None
    external: ExternalUsage | None = None
    minimum_micro: int = 0
    labels: LineLabels | None = None


@dataclass(frozen=True, slots=True)
class InvoiceView:
    """A team's month: issued and frozen, or a draft computed from usage; micro-units throughout."""

    invoice: Invoice | None
    team: Team
    period: BillingPeriod
    currency: str
    lines: list[LineView]
    total_micro: int
    accruing: list[tuple[Lease, int]]
    is_draft: bool

    @property
    def accruing_micro(self) -> int:
        """Return what runs now and is on no line yet."""
        return sum(micro for _lease, micro in self.accruing)


def currency() -> str:
    """Return the currency of the default rate card."""
    found = fetch("SELECT currency FROM catalog_ratecard WHERE is_default ORDER BY id LIMIT 1")
    return str(found[0][0]) if found else "EUR"


def _pieces_of(
    leases: Sequence[Lease], now: datetime, rates: dict[int, list[Rate]] | None = None
) -> dict[int, list[Piece] | None]:
    """Return each lease's pieces up to now; None where no rate covers it. ``rates`` when they are at hand."""
    events = events_by_lease(leases)
    if rates is None:
        rates = rates_by_model(ls.flavor.device_model_id for ls in leases)
    refunds, discounts = refunds_of(leases, events), discounts_of(leases, events, now=now)
    found: dict[int, list[Piece] | None] = {}
    raised: dict[int, int] = {}
    months = Months()
    for lease in leases:
        try:
            own = rates[lease.flavor.device_model_id]
            parts = pieces(
                active_intervals(events[lease.pk]), own, months=months, now=now, spans=discounts[lease.pk]
            )
            found[lease.pk] = parts = refunded(parts, refunds.get(lease.pk))
            if least := minimum_of(lease, parts, events[lease.pk]):
                raised[lease.pk] = least
        except Conflict:
            found[lease.pk] = None
    if raised:
        closed: dict[int, list[UsageRecord]] = defaultdict(list)
        for usage in UsageRecord.objects.filter(lease__in=raised, period__state=PeriodState.CLOSED):
            closed[usage.lease_id].append(usage)
        for lease in leases:
            own_parts = found[lease.pk]
            if lease.pk in raised and own_parts is not None:
                found[lease.pk] = at_minimum(lease, own_parts, raised[lease.pk], closed[lease.pk])
    return found


def exact_cost(lease: Lease, parts: Iterable[Piece]) -> Fraction:
    """Return what pieces of a lease cost in micro-units, unrounded."""
    return sum(
        (exact_micro(p.stretch.seconds * lease.share_milli, p.price(lease)) for p in parts), Fraction(0)
    )


def cost_so_far(leases: Sequence[Lease], *, now: datetime) -> dict[int, int | None]:
    """Return by lease id what it cost up to now in micro-units (not rounded to cents); None is unknown."""
    return {
        lease.pk: None if parts is None else int(exact_cost(lease, parts))
        for lease, parts in ((ls, found) for ls, found in _zip(leases, now))
    }


def _zip(leases: Sequence[Lease], now: datetime) -> Iterable[tuple[Lease, list[Piece] | None]]:
    found = _pieces_of(leases, now)
    return ((lease, found[lease.pk]) for lease in leases)


def costs_and_prices(leases: Sequence[Lease], *, now: datetime) -> dict[int, tuple[int | None, int | None]]:
    """Return by lease id what it cost up to now and what it costs an hour now, in micro-units; None is unknown."""
    return _costs_and_prices(leases, rates_by_model(ls.flavor.device_model_id for ls in leases), now)


def _costs_and_prices(
    leases: Sequence[Lease], rates: dict[int, list[Rate]], now: datetime
) -> dict[int, tuple[int | None, int | None]]:
    parts = _pieces_of(leases, now, rates)
    return {
        lease.pk: (
            None if (own := parts[lease.pk]) is None else int(exact_cost(lease, own)),
            _hourly(lease, rates[lease.flavor.device_model_id], discount, now),
        )
        for lease, discount in zip(leases, discounts_at(leases, now), strict=True)
    }


def cost_and_price(lease: Lease, *, now: datetime) -> tuple[int | None, int | None, str]:
    """Return what a lease cost up to now and what it costs an hour, in micro-units of a currency; None is unknown."""
    rates = rates_by_model([lease.flavor.device_model_id])
    cost, hourly = _costs_and_prices([lease], rates, now)[lease.pk]
    own = rates[lease.flavor.device_model_id]
    return cost, hourly, own[0].card.currency if own else currency()


def _hourly(lease: Lease, rates: Sequence[Rate], discount: Discount | None, now: datetime) -> int | None:
    for rate in rates:
        if (rate.valid.lower is None or rate.valid.lower <= now) and (
            rate.valid.upper is None or now < rate.valid.upper
        ):
            price = discounted_price(lowered(rate.price_of(lease.flavor), lease.price_milli), discount)
            return int(exact_micro(lease.share_milli * 3600, price))
    return None


def discounts_at(leases: Sequence[Lease], now: datetime) -> list[Discount | None]:
    """Return the discount that each lease has at an instant, None where it has none; at most two queries."""
    second = timedelta(seconds=1)
    wanted = [DiscountWanted(ls.team_id, ls.is_preemptible, now, now + second) for ls in leases]
    return [spans[0].discount if spans else None for spans in discounts_over(wanted)]


def _totals(team: Team, period: BillingPeriod) -> list[UsageTotal]:
    rows = UsageTotal.objects.filter(team=team, period=period)
    return list(rows.select_related("user", "flavor__device_model", "late_for"))


def line_key(record: UsageRecord) -> str:
    """Return the ``key`` of the draft line that a usage record is part of; its lease must be at hand."""
    lease = record.lease
    return _key_text(lease.user_id, lease.flavor_id, record.micro_per_hour, record.late_for)


def _key_text(user_id: int, flavor_id: int, micro_per_hour: int, late_for: BillingPeriod | None) -> str:
    return "-".join(str(part) for part in (user_id, flavor_id, micro_per_hour, late_for or "") if part != "")


def draft_lines(totals: Iterable[UsageTotal]) -> list[tuple[LineView, UsageTotal]]:
    """Rate one team's totals as lines that add up to the rounded exact total; person and flavor must be at hand."""
    return [
        (_line(position, total, amount), total)
        for position, (total, amount) in enumerate(rated(totals), start=1)
    ]


def rated(totals: Iterable[UsageTotal]) -> list[tuple[UsageTotal, int]]:
    """Return one team's totals in the order of its lines, each with its amount in micro-units."""
    ordered = sorted(
        totals,
        key=lambda t: (
            str(t.late_for or ""),
            str(t.user),
            t.flavor.position,
            t.user_id,
            t.flavor_id,
            t.micro_per_hour,
        ),
    )
    amounts = apportion_over([t.share_milli_seconds * t.micro_per_hour for t in ordered], SHARE_HOUR)
    return list(zip(ordered, amounts, strict=True))


def _line(position: int, total: UsageTotal, amount: int) -> LineView:
    return LineView(
        position=position,
        person=str(total.user),
        flavor=total.flavor.name,
        device_model=total.flavor.device_model.name,
        micro_per_hour=total.micro_per_hour,
        lease_count=total.leases,
        seconds=total.seconds,
        share_milli_seconds=total.share_milli_seconds,
        amount_micro=amount,
        key=_key_text(total.user_id, total.flavor_id, total.micro_per_hour, total.late_for),
        late_for=str(total.late_for) if total.late_for else "",
    )


def note_line(position: int, note: InvoiceNote) -> LineView:
    """Return the line that bills a note: the corrected line's names, no usage; what it corrects must be at hand."""
    corrected = note.line
    return LineView(
        position,
        corrected.person,
        corrected.flavor,
        corrected.device_model,
        corrected.micro_per_hour,
        lease_count=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=note.amount_micro,
        key=note.uid,
        late_for=str(corrected.invoice.period),
        note=note,
    )


def external_line(position: int, row: ExternalUsage) -> LineView:
    """Return the line that bills external usage: what it was and where from, no usage of ours."""
    return LineView(
        position,
        external_person(row),
        row.description,
        row.source,
        micro_per_hour=0,
        lease_count=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=row.amount_micro,
        key=f"external-{row.pk}",
        external=row,
        labels=labels_of_external(row),
    )


def invoice_view(team: Team, period: BillingPeriod, *, now: datetime) -> InvoiceView:
    """Return a team's month: the issued invoice as it was frozen, else the draft as of now."""
    invoice = Invoice.objects.filter(team=team, period=period, is_issued=True).first()
    raised = minimums(period, [team.pk])
    if invoice is not None:
        by_line = (
            {total.line_id: raised.get(line_of(total), 0) for total in _totals(team, period)}
            if raised
            else {}
        )
        rows = [
            LineView(
                line.position,
                line.person,
                line.flavor,
                line.device_model,
                line.micro_per_hour,
                line.lease_count,
                line.seconds,
                line.share_milli_seconds,
                line.amount_micro,
                key=str(line.position),
                late_for=str(line.late_for) if line.late_for else "",
                note=getattr(line, "note", None),
                external=getattr(line, "external", None),
                minimum_micro=by_line.get(line.pk, 0),
                labels=line.labels,
            )
            for line in invoice.lines.select_related(
                "late_for", "note__line__invoice__period", "external__book"
            )
        ]
        return InvoiceView(
            invoice, team, period, invoice.currency, rows, invoice.total_micro, [], is_draft=False
        )
    filed = labels_of_totals(period, [team.pk])
    lines = [
        replace(line, minimum_micro=raised.get(line_of(total), 0), labels=filed.get(total.pk))
        for line, total in draft_lines(_totals(team, period))
    ]
    notes = draft_notes(period, [team.pk])
    lines += [note_line(position, note) for position, note in enumerate(notes, start=len(lines) + 1)]
    rows_outside = external_usage(period, [team.pk], is_drafted=True)
    lines += [external_line(position, row) for position, row in enumerate(rows_outside, start=len(lines) + 1)]
    total = sum(line.amount_micro for line in lines)
    accruing = accruing_by_lease([team.pk], period, now=now)
    return InvoiceView(None, team, period, currency(), lines, total, accruing, is_draft=True)


def line_usage(team: Team, period: BillingPeriod, key: str) -> QuerySet[UsageRecord]:
    """Return the usage records behind a line, by the ``key`` its view carries; none for an unknown one."""
    rows = UsageRecord.objects.select_related(
        "lease__user", "lease__flavor__device_model", "late_for", "refund", "discount", "rate"
    ).order_by("pk")
    if Invoice.objects.filter(team=team, period=period, is_issued=True).exists():
        position = int(key) if key.isdecimal() and len(key) <= 9 else 0
        found = UsageTotal.objects.filter(team=team, period=period, line__position=position).first()
    else:
        drafts = draft_lines(_totals(team, period))
        found = next((total for line, total in drafts if line.key == key), None)
    if found is None:
        return rows.none()
    return rows.filter(
        team=team,
        period=period,
        lease__user=found.user_id,
        lease__flavor=found.flavor_id,
        micro_per_hour=found.micro_per_hour,
        currency=found.currency,
        late_for=found.late_for_id,
    )


def open_pieces(
    team_ids: Iterable[int], period: BillingPeriod, *, now: datetime
) -> list[tuple[Lease, list[Piece]]]:
    """Return leases with active time in the period that no usage record holds yet, and the pieces of that time."""
    return open_time(team_ids, period, now=now)[0]


def open_time(
    team_ids: Iterable[int], period: BillingPeriod, *, now: datetime
) -> tuple[list[tuple[Lease, list[Piece]]], list[Lease]]:
    """Return the same, and the leases not metered yet that no rate covers: nobody knows what they cost."""
    rows = (
        Lease.objects.filter(team__in=list(team_ids), is_metered=False, activated_at__isnull=False)
        .filter(activated_at__lt=period.ends_at)
        .select_related("user")
        .order_by("activated_at", "id")
    )
    leases = list(rows)
    # One object for each of the few flavors: a fleet of a thousand leases would make a thousand of each table.
    flavors = Flavor.objects.select_related("device_model").in_bulk({lease.flavor_id for lease in leases})
    for lease in leases:
        lease.flavor = flavors[lease.flavor_id]
    known: dict[int, list[Any]] = defaultdict(list)
    for lease_id, span in UsageRecord.objects.filter(lease__in=[ls.pk for ls in leases]).values_list(
        "lease_id", "span"
    ):
        known[lease_id].append(span)
    found: list[tuple[Lease, list[Piece]]] = []
    unpriced = []
    for lease, parts in _zip(leases, now):
        if parts is None:
            unpriced.append(lease)
            continue
        open_parts = [
            p
            for p in parts
            if not any(span.lower <= p.stretch.starts_at < span.upper for span in known[lease.pk])
            and period.starts_at <= p.stretch.starts_at < period.ends_at
        ]
        if open_parts:
            found.append((lease, open_parts))
    return found, unpriced


def accruing_by_lease(
    team_ids: Iterable[int], period: BillingPeriod, *, now: datetime
) -> list[tuple[Lease, int]]:
    """Return leases with cost in the period that no usage record holds yet, and that cost in micro-units."""
    return [(lease, int(exact_cost(lease, parts))) for lease, parts in open_pieces(team_ids, period, now=now)]


def accruing_micro(team_ids: Iterable[int], period: BillingPeriod, *, now: datetime) -> dict[int, int]:
    """Return by team what leases have cost in the period that is not in a usage record yet."""
    total: dict[int, int] = defaultdict(int)
    for lease, micro in accruing_by_lease(team_ids, period, now=now):
        total[lease.team_id] += micro
    return dict(total)


def team_spend(team_ids: Sequence[int], period: BillingPeriod, *, now: datetime) -> dict[int, int]:
    """Return by team what the period has cost so far in micro-units, running leases and notes included."""
    exact: dict[int, Fraction] = defaultdict(Fraction)
    rows = (
        UsageTotal.objects.filter(team__in=team_ids, period=period)
        .values("team_id", "micro_per_hour")
        .annotate(quantity=Sum("share_milli_seconds"))
        .order_by()
    )
    for row in rows:
        exact[row["team_id"]] += exact_micro(row["quantity"], row["micro_per_hour"])
    for (_period, team_id), amount in note_sums([period], team_ids).items():
        exact[team_id] += amount
    for (_period, team_id), amount in external_sums([period], team_ids).items():
        exact[team_id] += amount
    accruing = accruing_micro(team_ids, period, now=now)
    return {team_id: to_minor(exact[team_id] + accruing.get(team_id, 0)) for team_id in team_ids}
