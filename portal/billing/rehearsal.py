"""The close of a month, rehearsed: the drafts of all that it would produce, and why they differ from last month's.

Changes nothing. Amounts come from the kept totals of usage, some dozen rows a team, not from usage records; what is
not metered yet is rated as metering will. So a rehearsal of a month that is over comes to what its close issues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from django.db import models
from django.db.models import Sum
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from portal.billing.checklist import CloseItem, close_items, is_ready
from portal.billing.metering import Piece
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    InvoiceNote,
    NoteState,
    PeriodState,
    UsageTotal,
)
from portal.billing.selectors import draft_lines, open_pieces
from portal.catalog.pricing import exact_micro, to_minor
from portal.common.errors import Conflict, Invalid, PeriodClosed
from portal.leases.models import Lease
from portal.teams.models import Team

MOST_SEEN = 200  # characters
_Line = tuple[
    int, int, int, int, str, int | None
]  # as a total: team, person, flavor, price, currency, late_for


class DifferenceKind(models.TextChoices):
    """Why a team's month came to another amount than the month before."""

    NEW_TEAM = "new_team", _("new: nothing the month before")
    NO_USE = "no_use", _("nothing used this month")
    USAGE = "usage", _("usage")
    PRICE = "price", _("prices")
    LATE = "late", _("adjustments for earlier months")
    NOTES = "notes", _("notes and external usage")


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of the difference to the month before, in micro-units; ``share_milli_seconds`` more or less, of usage."""

    kind: DifferenceKind
    amount_micro: int
    share_milli_seconds: int = 0


@dataclass(frozen=True, slots=True)
class RehearsedInvoice:
    """What a close would issue to a team, in micro-units; ``differences`` add up to it less ``before_micro``.

    ``before_micro`` is None where the books have no month before. ``lines`` counts those of usage and notes.
    """

    team: Team
    currency: str
    lines: int
    share_milli_seconds: int
    amount_micro: int
    notes_micro: int
    before_micro: int | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A close that was not carried out. ``seen`` says what was counted: a close that is given it refuses anything else.

    ``ledger_micro`` is what usage and notes come to by themselves, each team's rounded once: the invoices add up to it.
    """

    period: BillingPeriod
    before: BillingPeriod | None
    items: list[CloseItem]
    invoices: list[RehearsedInvoice]
    ledger_micro: int
    records: int
    unmetered: int
    seen: str

    @property
    def total_micro(self) -> int:
        """Return what all invoices come to."""
        return sum(invoice.amount_micro for invoice in self.invoices)

    @property
    def can_close(self) -> bool:
        """Say whether a close may be tried."""
        return is_ready(self.items)


def rehearse_close(period: BillingPeriod, *, now: datetime) -> Rehearsal:
    """Return the drafts, the checklist and the differences of a month that is not closed; raises PeriodClosed."""
    if period.state == PeriodState.CLOSED:
        raise PeriodClosed
    teams = {team.pk: team for team in Team.objects.all()}
    waiting = open_pieces(teams, period, now=now)
    drafts = _drafts(period, waiting)
    notes = _notes_by_team(period)
    before = BillingPeriod.objects.filter(ends_at=period.starts_at).first()
    now_parts, old_parts = _parts(drafts), _parts(_stored(before)) if before else {}
    old_notes = _notes_by_team(before) if before else {}
    invoices, ledger = [], 0
    for team_id, unit in sorted(
        drafts.keys() | notes.keys() | old_parts.keys() | old_notes.keys(),
        key=lambda k: (teams[k[0]].slug, k[1]),
    ):
        key = (team_id, unit)
        own, noted = drafts.get(key, []), notes.get(key, [])
        amount = sum(line.amount_micro for line, _total in draft_lines(own)) + sum(noted)
        ledger += to_minor(
            sum((exact_micro(t.share_milli_seconds, t.micro_per_hour) for t in own), Fraction(0))
        )
        ledger += sum(noted)
        was = _amount(old_parts.get(key), old_notes.get(key, [])) if before else None
        invoices.append(
            RehearsedInvoice(
                team=teams[team_id],
                currency=unit,
                lines=len(own) + len(noted),
                share_milli_seconds=sum(total.share_milli_seconds for total in own),
                amount_micro=amount,
                notes_micro=sum(noted),
                before_micro=was,
                differences=()
                if was is None
                else _differences(
                    now_parts.get(key),
                    old_parts.get(key),
                    sum(noted),
                    sum(old_notes.get(key, [])),
                    amount - was,
                ),
            )
        )
    return Rehearsal(
        period=period,
        before=before,
        items=close_items(period, now=now),
        invoices=invoices,
        ledger_micro=ledger,
        records=UsageTotal.objects.filter(period=period).aggregate(n=Sum("records"))["n"] or 0,
        unmetered=sum(len(parts) for _lease, parts in waiting),
        seen=_seen(period, waiting),
    )


def require_seen(period: BillingPeriod, seen: str) -> None:
    """Raise Conflict where a month that was metered to its end comes to anything else than was seen, and say what.

    Call with the books locked. Raises Invalid for a text that no rehearsal has said.
    """
    try:
        records, _amount, notes, _noted, rows, _last = (int(part) for part in seen.split("."))
    except ValueError as error:
        raise Invalid(fields={"seen": _("Give what the rehearsal said, or leave it out.")}) from error
    present = _seen(period, [])
    if present == seen:
        return
    found = [int(part) for part in present.split(".")]
    said = []
    if found[0] != records:
        said.append(_more(found[0] - records))
    if more := found[2] + found[4] - notes - rows:
        said.append(_more_notes(more))
    if not said:
        said.append(str(_("The amounts are not those that you have seen.")))
    raise Conflict(
        _("The month has changed since you looked: %(what)s Look again, then close.")
        % {"what": " ".join(said)},
        unmet="seen",
    )


def _more(count: int) -> str:
    text = (
        ngettext("%(n)d more usage record.", "%(n)d more usage records.", count)
        if count > 0
        else ngettext("%(n)d usage record less.", "%(n)d usage records less.", -count)
    )
    return text % {"n": abs(count)}


def _more_notes(count: int) -> str:
    text = (
        ngettext("%(n)d more note or external row.", "%(n)d more notes or external rows.", count)
        if count > 0
        else ngettext("%(n)d note or external row less.", "%(n)d notes or external rows less.", -count)
    )
    return text % {"n": abs(count)}


def _seen(period: BillingPeriod, waiting: Sequence[tuple[Lease, list[Piece]]]) -> str:
    """Return records, what they come to in 1/3,600,000 micro-units, notes, what those come to, and external rows.

    Of external rows it is how many and the last: one that was undone and imported for another team is another row.
    """
    rows = UsageTotal.objects.filter(period=period).values_list(
        "records", "share_milli_seconds", "micro_per_hour"
    )
    records, exact = 0, 0
    for count, quantity, price in rows:
        records, exact = records + count, exact + quantity * price
    for lease, parts in waiting:
        records += len(parts)
        exact += sum(part.stretch.seconds * lease.share_milli * part.price(lease) for part in parts)
    notes = InvoiceNote.objects.filter(period=period, state=NoteState.APPROVED)
    sums = notes.aggregate(n=models.Count("pk"), amount=Sum("amount_micro"))
    external = ExternalUsage.objects.filter(period=period, is_live=True)
    outside = external.aggregate(n=models.Count("pk"), last=models.Max("pk"))
    return f"{records}.{exact}.{sums['n']}.{sums['amount'] or 0}.{outside['n']}.{outside['last'] or 0}"


def _stored(period: BillingPeriod) -> dict[tuple[int, str], list[UsageTotal]]:
    found: dict[tuple[int, str], list[UsageTotal]] = defaultdict(list)
    for total in UsageTotal.objects.filter(period=period):
        found[total.team_id, total.currency].append(total)
    return found


def _drafts(
    period: BillingPeriod, waiting: Sequence[tuple[Lease, list[Piece]]]
) -> dict[tuple[int, str], list[UsageTotal]]:
    """Return the totals of a month by team and currency, with what is not metered yet added to them in memory."""
    lines: dict[_Line, UsageTotal] = {}
    for total in UsageTotal.objects.filter(period=period).select_related(
        "user", "flavor__device_model", "late_for"
    ):
        lines[
            total.team_id,
            total.user_id,
            total.flavor_id,
            total.micro_per_hour,
            total.currency,
            total.late_for_id,
        ] = total
    for lease, parts in waiting:
        for part in parts:
            price, unit = part.price(lease), part.stretch.rate.card.currency
            key = (lease.team_id, lease.user_id, lease.flavor_id, price, unit, None)
            if key not in lines:
                lines[key] = UsageTotal(
                    period=period, team_id=lease.team_id, user=lease.user, flavor=lease.flavor, micro_per_hour=price,
                    currency=unit, records=0, leases=0, seconds=0, share_milli_seconds=0,
                )  # fmt: skip
            lines[key].records += 1
            lines[key].seconds += part.stretch.seconds
            lines[key].share_milli_seconds += part.stretch.seconds * lease.share_milli
    found: dict[tuple[int, str], list[UsageTotal]] = defaultdict(list)
    for total in lines.values():
        found[total.team_id, total.currency].append(total)
    return found


def _notes_by_team(period: BillingPeriod) -> dict[tuple[int, str], list[int]]:
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    rows = InvoiceNote.objects.filter(period=period, state=NoteState.APPROVED)
    for team_id, unit, amount in rows.values_list("team_id", "currency", "amount_micro"):
        found[team_id, unit].append(amount)
    external = ExternalUsage.objects.filter(period=period, is_live=True)
    for team_id, unit, amount in external.values_list("team_id", "currency", "amount_micro"):
        found[team_id, unit].append(amount)
    return found


@dataclass(slots=True)
class _Month:
    """A team's month: by flavor its quantity and cost, and what was late, unrounded."""

    by_flavor: dict[int, tuple[int, Fraction]]
    late: Fraction

    @property
    def exact(self) -> Fraction:
        return sum((cost for _quantity, cost in self.by_flavor.values()), self.late)


def _parts(totals: dict[tuple[int, str], list[UsageTotal]]) -> dict[tuple[int, str], _Month]:
    found = {}
    for key, own in totals.items():
        month = _Month({}, Fraction(0))
        for total in own:
            cost = exact_micro(total.share_milli_seconds, total.micro_per_hour)
            if total.late_for_id is not None:
                month.late += cost
                continue
            quantity, sum_before = month.by_flavor.get(total.flavor_id, (0, Fraction(0)))
            month.by_flavor[total.flavor_id] = (quantity + total.share_milli_seconds, sum_before + cost)
        found[key] = month
    return found


def _amount(month: _Month | None, notes: Sequence[int]) -> int:
    return (to_minor(month.exact) if month else 0) + sum(notes)


def _differences(
    now: _Month | None, old: _Month | None, notes: int, old_notes: int, whole: int
) -> tuple[Difference, ...]:
    """Return what makes the difference of two months; in whole cents that add up to ``whole``.

    More of a flavor counts at what it had cost on average, the rest of what it costs more is its price. A flavor that
    is new counts as usage.
    """
    if old is None and not old_notes:
        return (Difference(DifferenceKind.NEW_TEAM, whole, _quantity(now)),) if whole else ()
    if now is None and not notes:
        return (Difference(DifferenceKind.NO_USE, whole, -_quantity(old)),) if whole else ()
    now, old = now or _Month({}, Fraction(0)), old or _Month({}, Fraction(0))
    usage = price = Fraction(0)
    for flavor in now.by_flavor.keys() | old.by_flavor.keys():
        quantity, cost = now.by_flavor.get(flavor, (0, Fraction(0)))
        quantity_before, cost_before = old.by_flavor.get(flavor, (0, Fraction(0)))
        at_old_price = Fraction(quantity) * cost_before / quantity_before if quantity_before else cost
        usage += at_old_price - cost_before
        price += cost - at_old_price
    more = _quantity(now) - _quantity(old)
    parts = {
        DifferenceKind.USAGE: to_minor(usage),
        DifferenceKind.PRICE: to_minor(price),
        DifferenceKind.LATE: to_minor(now.late - old.late),
        DifferenceKind.NOTES: notes - old_notes,
    }
    # Each part is rounded by itself; the cents that this leaves go to the largest.
    largest = max(parts, key=lambda kind: abs(parts[kind]))
    parts[largest] += whole - sum(parts.values())
    return tuple(
        Difference(kind, amount, more if kind == DifferenceKind.USAGE else 0)
        for kind, amount in parts.items()
        if amount or (kind == DifferenceKind.USAGE and more)
    )


def _quantity(month: _Month | None) -> int:
    return sum(quantity for quantity, _cost in month.by_flavor.values()) if month else 0
