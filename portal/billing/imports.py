"""Files that finance imports: previewed, then applied as they were previewed, all of a file or nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Protocol
from zoneinfo import ZoneInfo

from django.db import IntegrityError
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    FinanceImport,
    ImportKind,
    OpeningBalance,
    PeriodState,
)
from portal.billing.periods import open_period, zone_at
from portal.catalog.pricing import MINOR_MICRO
from portal.common.csv_rows import CsvFile, CsvRow, plain_text, unusable
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound, PeriodClosed
from portal.common.months import Months
from portal.common.sql import fetch
from portal.common.trigger_errors import constraint_of, is_about_closed_month
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_teams

MOST_ROWS = 10_000
MOST_TOLD = 100  # sentences in one refusal
MOST_AMOUNT_MICRO = 10**15
# What two files that are applied at once cannot both have.
_ROWS_ONCE = ("external_id_once_at_its_source", "opening_balance_of_a_team_once")
_AMOUNT = re.compile(r"[0-9]{1,9}([.,][0-9]{1,6})?")


class Faulty(Protocol):
    """A row of a file that is being read."""

    number: int
    faults: list[tuple[str, str]]


@dataclass(slots=True)
class RowReader:
    """Reads the cells of one row and notes what is wrong with them, as (column, sentence)."""

    row: CsvRow
    delimiter: str
    faults: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.row.is_too_long:
            self.faults.append(("", _("There are more cells than columns.")))

    def text(self, column: str) -> str:
        """Return a cell, "" where the file has none."""
        return self.row.cells.get(column, "")

    def fault(self, column: str, sentence: str) -> None:
        """Note what is wrong."""
        self.faults.append((column, sentence))

    def amount(self, column: str, *, is_price: bool = False) -> int | None:
        """Return micro-units of a cell, zero or more; None for an empty one, or with a fault.

        Whole cents, where it is no price.
        """
        text = self.text(column)
        if not text:
            return None
        # Where commas separate cells, one inside an amount is more likely a thousand than a decimal.
        if not _AMOUNT.fullmatch(text) or ("," in text and self.delimiter == ","):
            self.fault(
                column, _("Write an amount of zero or more like 1250.50, without a currency or spaces.")
            )
            return None
        micro = int(Decimal(text.replace(",", ".")) * 1_000_000)
        if micro % MINOR_MICRO and not is_price:
            self.fault(column, _("Give whole cents."))
            return None
        if micro > MOST_AMOUNT_MICRO:
            self.fault(column, _("This is more than any row can have. Check the decimal sign."))
            return None
        return micro

    def currency(self, own: str) -> None:
        """Note a fault where the row is in another currency than the books."""
        given = self.text("currency").upper()
        if given != own:
            self.fault("currency", _("The books are kept in %(own)s. Give the amounts in it.") % {"own": own})

    def team(self, teams: TeamNames) -> Team | None:
        """Return the team that a row names by its slug or its name, None with a fault."""
        found = teams.named(self.text("team"))
        if found is None:
            self.fault("team", _("There is no such team. Give its slug, or its name where only one has it."))
        return found


class TeamNames:
    """The teams that somebody sees, by what a file may call them."""

    def __init__(self, rights: Rights) -> None:
        self._by_slug: dict[str, Team] = {}
        self._by_name: dict[str, Team | None] = {}
        for team in visible_teams(rights):
            self._by_slug[team.slug] = team
            name = team.name.casefold()
            self._by_name[name] = None if name in self._by_name else team

    def named(self, text: str) -> Team | None:
        """Return a team by its slug, else by a name that no other team has."""
        return self._by_slug.get(text.lower()) or self._by_name.get(text.casefold())


@dataclass(frozen=True, slots=True)
class OpenMonths:
    """The months that something can be imported into: the running one, and open ones that the books have."""

    periods: dict[date, BillingPeriod | None]
    today: date

    def fault(self, day: date) -> str:
        """Return why nothing of a day can be imported, "" where it can."""
        if day > self.today:
            return _("This day is yet to come.")
        if day.replace(day=1) not in self.periods:
            return _("This month is not open. Open are: %(months)s.") % {
                "months": ", ".join(f"{first:%Y-%m}" for first in sorted(self.periods))
            }
        return ""


def open_months(*, now: datetime) -> OpenMonths:
    """Return the months that are open; the running one may not be in the books yet."""
    running = Months().of(now)
    rows = BillingPeriod.objects.filter(month__lte=running)
    found: dict[date, BillingPeriod | None] = {
        row.month: row for row in rows if row.state == PeriodState.OPEN
    }
    if not any(row.month == running for row in rows):
        found[running] = None
    return OpenMonths(found, now.astimezone(ZoneInfo(zone_at(running))).date())


def text_digest(text: str) -> str:
    """Return the SHA-256 of a file's text, the same whatever its mark and line ends."""
    return hashlib.sha256(plain_text(text).encode()).hexdigest()


def require_finance(rights: Rights) -> None:
    """Raise Forbidden for anybody but finance of the organisation."""
    if not rights.is_finance:
        raise Forbidden(_("Only finance of the organisation imports files."))


def require_new(kind: str, digest: str) -> None:
    """Raise Conflict where a file was imported already, naming that import."""
    first = FinanceImport.objects.select_related("made_by").filter(
        kind=kind, digest=digest, is_live=True
    ).first()  # fmt: skip
    if first is not None:
        raise Conflict(
            _("This file was imported already: %(uid)s, by %(who)s on %(day)s. Undo that import first.")
            % {"uid": first.uid, "who": first.made_by, "day": f"{first.made_at:%Y-%m-%d}"},
            first=first.uid,
        )


def require_previewed(text: str, digest: str) -> None:
    """Raise Invalid where a text is not the one whose digest a preview gave."""
    if text_digest(text) != digest.strip().lower():
        raise Invalid(
            fields={"digest": _("This is not the file that was previewed. Preview it again, then apply it.")}
        )


def require_rows(file: CsvFile) -> None:
    """Raise Invalid for a file without rows, or with too many."""
    if not 1 <= len(file.rows) <= MOST_ROWS:
        raise unusable(_("Import 1 to %(n)d rows at once.") % {"n": MOST_ROWS})


def require_faultless(lines: Iterable[Faulty]) -> None:
    """Raise Invalid naming line, column and reason of each fault, the first hundred of them."""
    said = [
        _("Line %(n)d, %(column)s: %(why)s") % {"n": line.number, "column": column, "why": why}
        if column
        else _("Line %(n)d: %(why)s") % {"n": line.number, "why": why}
        for line in lines
        for column, why in line.faults
    ]
    if len(said) > MOST_TOLD:
        said = [*said[:MOST_TOLD], _("There are %(n)d more.") % {"n": len(said) - MOST_TOLD}]
    if said:
        raise Invalid(fields={"csv": said})


def hold_month(first: date) -> BillingPeriod:
    """Return a month, opened on first sight and kept from closing until this transaction ends; raises PeriodClosed."""
    period = BillingPeriod.objects.filter(month=first).first() or open_period(first)
    rows = fetch(
        "SELECT id FROM billing_billingperiod WHERE id = %s AND state = %s FOR SHARE",
        [period.pk, PeriodState.OPEN],
    )
    if not rows:
        raise PeriodClosed
    return period


def refused(kind: str, digest: str, error: IntegrityError) -> Exception:
    """Return what to raise where the database refused an import: somebody else was faster, or the month is closed."""
    if constraint_of(error) == "import_of_a_file_once":
        try:
            require_new(kind, digest)
        except Conflict as conflict:
            return conflict
    if constraint_of(error) in _ROWS_ONCE:
        return Conflict(_("Somebody else has just imported some of these rows. Preview the file again."))
    if is_about_closed_month(error):
        return PeriodClosed()
    return error


def imports_in_sight(rights: Rights) -> QuerySet[FinanceImport]:
    """Return the imports that finance sees, the newest first; none for others."""
    rows = FinanceImport.objects.select_related("period", "made_by", "reverses", "reversal")
    if not rights.is_finance:
        return rows.none()
    teams = visible_teams(rights)
    return rows.filter(
        Q(pk__in=OpeningBalance.objects.filter(team__in=teams).values("book"))
        | Q(pk__in=ExternalUsage.objects.filter(team__in=teams).values("book"))
    )


def visible_import(rights: Rights, uid: str) -> FinanceImport:
    """Return an import that finance sees; raises NotFound."""
    found = imports_in_sight(rights).filter(uid=uid).first()
    if found is None:
        raise NotFound
    return found


def undoable(book: FinanceImport) -> bool:
    """Say whether an import can be undone: it is live and its month open."""
    return book.is_live and book.period.state == PeriodState.OPEN and book.kind != ImportKind.ENERGY
