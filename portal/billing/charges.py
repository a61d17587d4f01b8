"""A month's charges: every line of every team, issued or rated now; what reports and exports are made from."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any, cast

from django.db.models import ForeignKey

from portal.accounts.models import User
from portal.billing.external_lines import external_person, external_usage
from portal.billing.labels import NONE, labels_of
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    Invoice,
    InvoiceLine,
    InvoiceNote,
    NoteState,
    UsageTotal,
)
from portal.billing.notes import all_notes
from portal.billing.periods import by_day, day_starts
from portal.billing.selectors import open_time, rated
from portal.catalog.models import Flavor
from portal.catalog.pricing import SHARE_HOUR, apportion_over
from portal.common.rows import Rows
from portal.common.sql import fetch
from portal.leases.models import Lease
from portal.teams.labels import Labels
from portal.teams.models import Team

# Arrays, where lists of thousands of values would be as many parameters. Summed where the rows are: a month of a few
# hundred teams has a hundred thousand of them.
_BY_DAY = """
SELECT k.key, d.day, sum(d.share_milli_seconds::numeric * k.price)
  FROM unnest(%s::bigint[], %s::int[], %s::bigint[]) AS k(total_id, key, price)
  JOIN billing_usageday d ON d.total_id = k.total_id GROUP BY 1, 2 ORDER BY 1, 2
"""
_UNTIL = """
SELECT total_id, coalesce(sum(share_milli_seconds) FILTER (WHERE day < %s), 0),
       coalesce(sum(share_milli_seconds) FILTER (WHERE day = %s), 0)
  FROM billing_usageday WHERE total_id = ANY(%s) GROUP BY 1
"""
_TOTALS, _LINES = Rows(UsageTotal), Rows(InvoiceLine)
_USER, _FLAVOR, _LATE_FOR, _LINE = (
    cast("ForeignKey[Any, Any]", UsageTotal._meta.get_field(name))
    for name in ("user", "flavor", "late_for", "line")
)


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of a team's month. Micro-units; names as they were copied where the invoice is issued.

    ``position`` and ``number`` are those of the invoice, ``number`` None for a draft. ``late_for`` names the earlier
    month, as "2026-10", that an adjustment or a note belongs to. ``note`` is the credit or debit note that the line
    bills, ``external`` the usage of devices outside Berth: neither has usage of ours, and ``total_id`` is then 0.
    ``labels`` are those of a part of a line (``split_by_label``), or of external usage.
    """

    total_id: int
    team: Team
    team_name: str
    cost_centre: str
    user: User | None
    person: str
    flavor_id: int
    flavor: str
    device_model: str
    micro_per_hour: int
    currency: str
    leases: int
    seconds: int
    share_milli_seconds: int
    amount_micro: int
    position: int
    number: str | None
    late_for: str
    note: InvoiceNote | None = None
    external: ExternalUsage | None = None
    labels: Labels = NONE

    @property
    def is_usage(self) -> bool:
        """Say whether there is usage of our own devices behind it."""
        return self.note is None and self.external is None

    @property
    def username(self) -> str:
        """Return the user name of its person, "" where external usage names none."""
        return self.user.username if self.user else ""


@dataclass(frozen=True, slots=True)
class Accrual:
    """What a lease has cost in a month that is on no line yet: it still runs, or was not metered yet.

    ``exact_by_day`` is in micro-units times SHARE_HOUR: whole numbers, which add up far faster than fractions.
    """

    team: Team
    user: User
    flavor: Flavor
    micro: Fraction
    exact_by_day: dict[date, int]
    labels: Labels = NONE


def charges_of(period: BillingPeriod, teams: Iterable[Team]) -> list[Charge]:
    """Return the charges of these teams in a month, teams by name; those of an invoice add up to its total."""
    by_id = {team.pk: team for team in teams}
    rows = _TOTALS.where("period_id = %s AND team_id = ANY(%s) ORDER BY id", [period.pk, list(by_id)])
    _attach(rows, period)
    drafts: dict[tuple[int, str], list[UsageTotal]] = defaultdict(list)
    found = []
    for total in rows:
        if total.line is None:
            drafts[total.team_id, total.currency].append(total)
        else:
            found.append(_issued(total, by_id[total.team_id]))
    lines: dict[tuple[int, str], int] = defaultdict(int)
    for (team_id, unit), own in drafts.items():
        team = by_id[team_id]
        lines[team_id, unit] = len(own)
        found += [
            _charge(total, team, team.name, team.cost_centre, _names_of(total), amount, position, None)
            for position, (total, amount) in enumerate(rated(own), start=1)
        ]
    notes = all_notes().filter(period=period, state=NoteState.APPROVED, team__in=by_id)
    for note in notes.order_by("decided_at", "pk"):
        lines[note.team_id, note.currency] += 1
        found.append(_of_note(note, by_id[note.team_id], lines[note.team_id, note.currency]))
    for row in external_usage(period, by_id):
        lines[row.team_id, row.currency] += 1
        found.append(_of_external(row, by_id[row.team_id], lines[row.team_id, row.currency]))
    return sorted(found, key=lambda c: (c.team_name.lower(), c.team.pk, c.currency, c.position))


def _names_of(total: UsageTotal) -> tuple[str, str, str]:
    """Return what a draft line calls person, flavor and device model."""
    return str(total.user), total.flavor.name, total.flavor.device_model.name


def _attach(totals: Sequence[UsageTotal], period: BillingPeriod) -> None:
    """Give totals their people, flavors, months and lines, one object of each: joined, each of a month's many
    thousand lines would make objects of seven tables anew.
    """
    users = User.objects.in_bulk({total.user_id for total in totals})
    flavors = Flavor.objects.select_related("device_model").in_bulk({total.flavor_id for total in totals})
    months = BillingPeriod.objects.in_bulk({total.late_for_id for total in totals if total.late_for_id})
    lines: dict[int, InvoiceLine] = {}
    if any(total.line_id for total in totals):
        invoices = {invoice.pk: invoice for invoice in Invoice.objects.filter(period=period)}
        for line in _LINES.where("invoice_id = ANY(%s)", [list(invoices)]):
            line.invoice = invoices[line.invoice_id]
            lines[line.pk] = line
    for total in totals:
        _USER.set_cached_value(total, users[total.user_id])
        _FLAVOR.set_cached_value(total, flavors[total.flavor_id])
        _LATE_FOR.set_cached_value(total, months[total.late_for_id] if total.late_for_id else None)
        _LINE.set_cached_value(total, lines[total.line_id] if total.line_id else None)


def _issued(total: UsageTotal, team: Team) -> Charge:
    line = total.line
    assert line is not None
    names = (line.person, line.flavor, line.device_model)
    bill = line.invoice
    return _charge(
        total, team, bill.team_name, bill.cost_centre, names, line.amount_micro, line.position, bill.number
    )


def _of_note(note: InvoiceNote, team: Team, position: int) -> Charge:
    """Return what a note comes to; ``position`` where it will stand, as long as it is on no line."""
    corrected, line = note.line, note.issued_line
    bill = line.invoice if line else None
    total = getattr(corrected, "total", None)  # None of electricity
    return Charge(
        total_id=0,
        team=team,
        team_name=bill.team_name if bill else team.name,
        cost_centre=bill.cost_centre if bill else team.cost_centre,
        user=total.user if total else corrected.external.user,
        person=corrected.person,
        flavor_id=total.flavor_id if total else 0,
        flavor=corrected.flavor,
        device_model=corrected.device_model,
        micro_per_hour=corrected.micro_per_hour,
        currency=note.currency,
        leases=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=note.amount_micro,
        position=line.position if line else position,
        number=bill.number if bill else None,
        late_for=str(corrected.invoice.period),
        note=note,
    )


def _of_external(row: ExternalUsage, team: Team, position: int) -> Charge:
    """Return what external usage comes to; ``position`` where it will stand, as long as it is on no line."""
    line = row.billed_on
    bill = line.invoice if line else None
    labels = NONE
    if row.label is not None:
        labels = Labels(row.label.cost_centre, row.label.project, tuple(sorted(row.label.tags.items())))
    return Charge(
        total_id=0,
        team=team,
        team_name=bill.team_name if bill else team.name,
        cost_centre=bill.cost_centre if bill else team.cost_centre,
        user=row.user,
        person=line.person if line else external_person(row),
        flavor_id=0,
        flavor=row.description,
        device_model=row.source,
        micro_per_hour=0,
        currency=row.currency,
        leases=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=row.amount_micro,
        position=line.position if line else position,
        number=bill.number if bill else None,
        late_for="",
        external=row,
        labels=labels,
    )


def _charge(
    total: UsageTotal,
    team: Team,
    team_name: str,
    cost_centre: str,
    names: tuple[str, str, str],
    amount: int,
    position: int,
    number: str | None,
) -> Charge:
    person, flavor, device_model = names
    return Charge(
        total_id=total.pk,
        team=team,
        team_name=team_name,
        cost_centre=cost_centre,
        user=total.user,
        person=person,
        flavor_id=total.flavor_id,
        flavor=flavor,
        device_model=device_model,
        micro_per_hour=total.micro_per_hour,
        currency=total.currency,
        leases=total.leases,
        seconds=total.seconds,
        share_milli_seconds=total.share_milli_seconds,
        amount_micro=amount,
        position=position,
        number=number,
        late_for=str(total.late_for) if total.late_for else "",
    )


def accruals_of(
    period: BillingPeriod, teams: Iterable[Team], *, now: datetime
) -> tuple[list[Accrual], list[Lease]]:
    """Return what leases of these teams have cost in a month that is on no line yet, by day of the month.

    And the leases that no price covers, which are in none of it.
    """
    by_id = {team.pk: team for team in teams}
    found, starts = [], day_starts(period)
    priced, unpriced = open_time(by_id, period, now=now)
    labels = labels_of([lease for lease, _parts in priced]) if priced else {}
    for lease, parts in priced:
        exact: dict[date, int] = defaultdict(int)
        for part in parts:
            price = lease.share_milli * part.price(lease)
            for day, seconds in by_day(period, starts, part.stretch.starts_at, part.stretch.ends_at):
                exact[day] += seconds * price
        micro = Fraction(sum(exact.values()), SHARE_HOUR)
        of = labels.get(lease.pk, NONE)
        found.append(Accrual(by_id[lease.team_id], lease.user, lease.flavor, micro, dict(exact), of))
    return found, unpriced


def exact_by_day(charges: Sequence[Charge], key: Callable[[Charge], str]) -> Iterator[tuple[str, date, int]]:
    """Yield by key and day what was used, in micro-units times SHARE_HOUR; adjustments are on no day."""
    used = [charge for charge in charges if charge.is_usage and not charge.late_for]
    keys = [key(charge) for charge in used]
    names = list(dict.fromkeys(keys))
    numbers = {name: number for number, name in enumerate(names)}
    values = [[c.total_id for c in used], [numbers[k] for k in keys], [c.micro_per_hour for c in used]]
    return ((names[number], day, int(exact)) for number, day, exact in fetch(_BY_DAY, values))


def costs_until(charges: Sequence[Charge], period: BillingPeriod, until: datetime) -> list[int]:
    """Return what each charge of a month had come to by an instant of it, in micro-units that add up as printed.

    The day of the instant counts by the part of it that was over: what a day had is kept, not when in it. Notes count
    as a whole, as adjustments do.
    """
    prices = {charge.total_id: charge.micro_per_hour for charge in charges if charge.is_usage}
    starts = day_starts(period)
    number = min(bisect_right(starts, until), len(starts) - 1) - 1
    today = period.month + timedelta(days=number)
    length = int((starts[number + 1] - starts[number]).total_seconds())
    over = int((until - starts[number]).total_seconds())
    days = {pk: (int(whole), int(begun)) for pk, whole, begun in fetch(_UNTIL, [today, today, list(prices)])}
    exact = [
        price * (whole * length + begun * over)
        for pk, price in prices.items()
        for whole, begun in [days.get(pk, (0, 0))]
    ]
    amounts = apportion_over(exact, SHARE_HOUR * length)
    used = dict(zip(prices, amounts, strict=True))
    return [used[charge.total_id] if charge.is_usage else charge.amount_micro for charge in charges]
