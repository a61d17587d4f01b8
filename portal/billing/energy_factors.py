"""Dated factors of sites: grams of CO2 equivalent per kWh, the PUE, the price of electricity. Finance and operators."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation

from django.db import IntegrityError, transaction
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.models import BillingPeriod, EnergyFactor, EnergyFactorKind, PeriodState
from portal.billing.periods import lock_books
from portal.common.clock import db_now
from portal.common.csv_rows import read_rows, unusable
from portal.common.errors import Conflict, Invalid, NotFound
from portal.common.sql import execute
from portal.fleet.models import Node

# In thousandths. Coal stays below 1.5 kg per kWh; a PUE below one would make energy.
BOUNDS = {
    EnergyFactorKind.CARBON: (0, 5_000_000),
    EnergyFactorKind.PUE: (1000, 10_000),
    EnergyFactorKind.PRICE: (0, 10_000_000),
}
JUST_NOW = timedelta(minutes=1)
PATIENCE = "2min"  # a factor of time gone by weighs the hours of its months anew, which may be many
CSV_COLUMNS = ("kind", "site", "from", "until", "value", "source")
MOST_ROWS, MOST_NAMED = 20_000, 20


@dataclass(frozen=True, slots=True)
class FactorSpec:
    """A factor that somebody wants: ``ends_at`` None goes on until another follows."""

    kind: str
    site: str
    value: Decimal
    source: str
    starts_at: datetime
    ends_at: datetime | None = None


def factors(*, site: str | None = None) -> list[EnergyFactor]:
    """Return all factors, the latest first; of one site where it is named."""
    rows = EnergyFactor.objects.order_by("kind", "site", "-valid")
    return list(rows if site is None else rows.filter(site=site))


def sites() -> list[str]:
    """Return the sites that nodes say they are at."""
    found = Node.objects.exclude(site="").order_by("site").values_list("site", flat=True).distinct()
    return list(found)


@transaction.atomic
def add_factor(
    *, kind: str, site: str, value: Decimal, source: str, starts_at: datetime | None, ends_at: datetime | None,
    actor: User | None,
) -> EnergyFactor:  # fmt: skip
    """Set a factor of a site from an instant on (None: from now on); an open one that is in force ends there.

    It may begin in the past where none was in force, after the last closed month; a price of electricity begins now or
    later. Raises Invalid naming the field,
    and Conflict where another covers that time.
    """
    lock_books()
    execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
    now = db_now()
    begin = now if starts_at is None else starts_at
    spec = FactorSpec(kind, site.strip(), value, source.strip(), begin, ends_at)
    wrong = _wrong(spec, closed=_closed_until(), now=now)
    if wrong:
        raise Invalid(fields=wrong)
    open_ones = EnergyFactor.objects.select_for_update().filter(
        kind=spec.kind, site=spec.site, valid__startswith__lt=begin, valid__upper_inf=True
    )
    for before in open_ones:
        if begin < now:
            raise Conflict(
                _("A factor is in force since %(at)s: another can only follow it from now on.")
                % {"at": f"{before.valid.lower:%Y-%m-%d %H:%M} UTC"}
            )
        EnergyFactor.objects.filter(pk=before.pk).update(valid=(before.valid.lower, begin))
    try:
        with transaction.atomic():
            made = _row(spec, actor, now)
            made.save()
    except IntegrityError as error:
        raise Conflict(_("Another factor of this site covers part of that time.")) from error
    record(
        actor, "energy_factor.added", f"{made.kind} {made.site}".strip(), at=now, value_milli=made.value_milli,
        source=made.source, starts_at=spec.starts_at.isoformat(), ends_at=ends_at.isoformat() if ends_at else "",
    )  # fmt: skip
    made.refresh_from_db()
    return made


@transaction.atomic
def end_factor(*, key: int, actor: User | None) -> EnergyFactor | None:
    """End a factor now; one that has not begun is taken back, and None returned. Raises NotFound or Conflict."""
    lock_books()
    now = db_now()
    found = EnergyFactor.objects.select_for_update().filter(pk=key).first()
    if found is None:
        raise NotFound
    if found.valid.upper is not None and found.valid.upper <= now:
        raise Conflict(_("This factor is over already. What was used under it keeps it."))
    record(actor, "energy_factor.ended", f"{found.kind} {found.site}".strip(), at=now)
    if found.valid.lower > now:
        found.delete()
        return None
    EnergyFactor.objects.filter(pk=key).update(valid=(found.valid.lower, now))
    found.refresh_from_db()
    return found


@transaction.atomic
def import_factors(text: str, *, actor: User | None, is_trial: bool = False) -> list[FactorSpec]:
    """Add all factors of a CSV file or none of them; a trial only says what they would be.

    Raises Invalid with the lines that are wrong. The file never ends factors that are in force, and the
    prices of a site leave no gap in it.
    """
    lock_books()
    execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
    now = db_now()
    specs = _read(text, closed=_closed_until(), now=now)
    taken = list(EnergyFactor.objects.values_list("kind", "site", "valid"))
    spans = [(k, s, v.lower, v.upper, 0) for k, s, v in taken]
    spans += [(one.kind, one.site, one.starts_at, one.ends_at, line) for line, one in specs]
    spans.sort(key=lambda span: span[:3])
    wrong: dict[str, str] = {}
    for first, second in itertools.pairwise(spans):
        if first[:2] == second[:2] and (first[3] is None or second[2] < first[3]):
            other = max(first[4], second[4])
            wrong[_line(other)] = _("Another factor of this site covers part of that time.")
        elif (
            first[:2] == second[:2]
            and first[0] == EnergyFactorKind.PRICE
            and first[4]
            and second[4]
            and first[3] != second[2]
        ):
            wrong[_line(second[4])] = _("Electricity has no price between the line before and this one.")
    _refuse(wrong)
    if not is_trial:
        try:
            with transaction.atomic():
                EnergyFactor.objects.bulk_create(
                    [_row(one, actor, now) for _line_no, one in specs], batch_size=2000
                )
        except IntegrityError as error:
            raise Conflict(_("Another factor of this site covers part of that time.")) from error
        record(actor, "energy_factor.imported", "", at=now, rows=len(specs))
    return [one for _line_no, one in specs]


def _read(text: str, *, closed: datetime | None, now: datetime) -> list[tuple[int, FactorSpec]]:
    rows = read_rows(text, columns=CSV_COLUMNS, needed=CSV_COLUMNS, example=",".join(CSV_COLUMNS)).rows
    if len(rows) > MOST_ROWS:
        raise unusable(_("This file has too many lines: %(n)d at most.") % {"n": MOST_ROWS})
    wrong: dict[str, str] = {}
    found: list[tuple[int, FactorSpec]] = []
    for row in rows:
        if row.is_too_long or len(row.cells) < len(CSV_COLUMNS):
            wrong[_line(row.number)] = _("This line has too many or too few columns.")
            continue
        spec = _spec(row.cells)
        bad = _wrong(spec, closed=closed, now=now) if isinstance(spec, FactorSpec) else {"value": spec}
        if bad:
            wrong[_line(row.number)] = " ".join(bad.values())
        elif isinstance(spec, FactorSpec):
            found.append((row.number, spec))
    _refuse(wrong)
    if not found:
        raise unusable(_("This file has no factors."))
    return found


def _spec(row: dict[str, str]) -> FactorSpec | str:
    """Return the factor of a line, or what is wrong with it."""
    begin, end = _instant(row["from"]), _instant(row["until"]) if row["until"] else None
    if begin is None or (end is None and row["until"]):
        return _("Write instants with their offset, such as 2026-10-01T00:00:00Z.")
    try:
        value = Decimal(row["value"])
    except InvalidOperation:
        return _("The value is not a number.")
    return FactorSpec(row["kind"].lower(), row["site"], value, row["source"], begin, end)


def _instant(text: str) -> datetime | None:
    try:
        at = parse_datetime(text)
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _wrong(spec: FactorSpec, *, closed: datetime | None, now: datetime) -> dict[str, str]:
    fields: dict[str, str] = {}
    if spec.kind not in EnergyFactorKind.values:
        fields["kind"] = _("The kind is carbon, pue or price.")
    else:
        least, most = BOUNDS[EnergyFactorKind(spec.kind)]
        # NaN compares with nothing, and what is out of bounds may be too large to be rounded or multiplied.
        if not spec.value.is_finite() or not Decimal(least) / 1000 <= spec.value <= Decimal(most) / 1000:
            fields["value"] = _("The value lies between %(least)s and %(most)s.") % {
                "least": least // 1000,
                "most": most // 1000,
            }
        elif spec.value != spec.value.quantize(Decimal("0.001")):
            fields["value"] = _("Give a number with three decimals at most.")
    if len(spec.site) > 60 or not (spec.site.isprintable()):
        fields["site"] = _(
            "A site has up to 60 characters; left empty it is every site without its own factor."
        )
    if not 1 <= len(spec.source) <= 200 or not spec.source.isprintable():
        fields["source"] = _("Say where the figure is from, in up to 200 characters.")
    if not 2000 <= spec.starts_at.year <= 2100:
        fields["starts_at"] = _("Give a year from 2000 to 2100.")
    elif spec.kind == EnergyFactorKind.PRICE and spec.starts_at < now - JUST_NOW:
        fields["starts_at"] = _(
            "A price of electricity begins now or later: people know it before they use it."
        )
    elif closed is not None and spec.starts_at < closed:
        fields["starts_at"] = _("This month is closed: its carbon stays as it is.")
    if spec.ends_at is not None and not spec.starts_at < spec.ends_at:
        fields["ends_at"] = _("A factor ends after it begins.")
    elif spec.ends_at is not None and spec.ends_at.year > 2100:
        # The last hours of the year 9999 are in no year that can be read back.
        fields["ends_at"] = _("Give a year from 2000 to 2100.")
    return fields


def _closed_until() -> datetime | None:
    last = BillingPeriod.objects.filter(state=PeriodState.CLOSED).order_by("-ends_at").first()
    return last.ends_at if last else None


def _row(spec: FactorSpec, actor: User | None, now: datetime) -> EnergyFactor:
    return EnergyFactor(
        kind=spec.kind,
        site=spec.site,
        value_milli=int(spec.value * 1000),
        source=spec.source,
        valid=(spec.starts_at, spec.ends_at),
        created_by=actor,
        created_at=now,
    )


def _line(number: int) -> str:
    return _("line %(n)d") % {"n": number}


def _refuse(wrong: dict[str, str]) -> None:
    if wrong:
        raise Invalid(fields=dict(list(wrong.items())[:MOST_NAMED]))
