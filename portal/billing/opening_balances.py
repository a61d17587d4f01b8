"""What teams bring along when an organisation moves to Berth: balances of wallets, and what budgets had paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.audit.services import record
from portal.billing.imports import (
    RowReader,
    TeamNames,
    hold_month,
    open_months,
    refused,
    require_faultless,
    require_finance,
    require_new,
    require_previewed,
    require_rows,
    text_digest,
    undoable,
)
from portal.billing.models import FinanceImport, ImportKind, OpeningBalance
from portal.billing.selectors import currency
from portal.budgets.models import Wallet
from portal.budgets.wallets import MOST_MICRO, lock_wallets, post_together
from portal.common.csv_rows import read_rows
from portal.common.errors import Conflict
from portal.common.retry import with_retries
from portal.teams.models import Team
from portal.teams.selectors import Rights

COLUMNS = ("team", "balance", "used", "currency", "as_of")
NEEDED = ("team", "currency", "as_of")
EXAMPLE = "team,balance,used,currency,as_of"


@dataclass(slots=True)
class BalanceLine:
    """A row of a file as it will be applied; ``faults`` are (column, sentence), empty where it can be.

    ``was_micro`` is the balance of the wallet before, ``new_micro`` after it; None where no balance is given.
    """

    number: int
    name: str
    team: Team | None
    balance_micro: int | None
    used_micro: int | None
    was_micro: int | None
    as_of: date | None
    faults: list[tuple[str, str]] = field(default_factory=list)

    @property
    def new_micro(self) -> int | None:
        """Return the balance of the wallet once this is applied."""
        if self.was_micro is None or self.balance_micro is None:
            return None
        return self.was_micro + self.balance_micro


@dataclass(frozen=True, slots=True)
class BalancePreview:
    """A file as it will be applied to the month ``first``, its first day; None where no row has a good day."""

    digest: str
    currency: str
    first: date | None
    lines: list[BalanceLine]

    @property
    def is_ready(self) -> bool:
        """Say whether all rows can be applied."""
        return not any(line.faults for line in self.lines)

    @property
    def balance_micro(self) -> int:
        """Return the sum of all balances in the file."""
        return sum(line.balance_micro or 0 for line in self.lines)

    @property
    def used_micro(self) -> int:
        """Return the sum of what was used."""
        return sum(line.used_micro or 0 for line in self.lines)


def preview_balances(text: str, *, rights: Rights, now: datetime) -> BalancePreview:
    """Say what each row of a file would do. Changes nothing.

    Raises Forbidden, Invalid naming ``csv`` for what is no such file, Conflict for one that was imported already.
    """
    require_finance(rights)
    file = read_rows(text, columns=COLUMNS, needed=NEEDED, example=EXAMPLE)
    require_rows(file)
    digest, own = text_digest(text), currency()
    require_new(ImportKind.BALANCES, digest)
    teams, months = TeamNames(rights), open_months(now=now)
    wallets = {wallet.team_id: wallet for wallet in Wallet.objects.all()}
    live = OpeningBalance.objects.filter(is_live=True, period__month__in=months.periods)
    known = {
        (team, first): uid for team, first, uid in live.values_list("team", "period__month", "book__uid")
    }
    lines: list[BalanceLine] = []
    seen: dict[int, int] = {}
    first: date | None = None
    for row in file.rows:
        cells = RowReader(row, file.delimiter)
        team = cells.team(teams)
        balance, used = cells.amount("balance"), cells.amount("used")
        if not cells.text("balance") and not cells.text("used"):
            cells.fault("balance", _("Give a balance, what was used so far, or both."))
        cells.currency(own)
        as_of = _day(cells.text("as_of"))
        if as_of is None:
            cells.fault("as_of", _("Write the day like 2026-11-30."))
        elif why := months.fault(as_of):
            cells.fault("as_of", why)
        else:
            first = first or as_of.replace(day=1)
            if as_of.replace(day=1) != first:
                cells.fault(
                    "as_of",
                    _("All rows of a file are of one month: %(month)s.") % {"month": f"{first:%Y-%m}"},
                )
        wallet = wallets.get(team.pk) if team else None
        if team is not None:
            if team.pk in seen:
                cells.fault("team", _("This team is on line %(n)d already.") % {"n": seen[team.pk]})
            seen.setdefault(team.pk, row.number)
            uid = known.get((team.pk, as_of.replace(day=1))) if as_of else None
            if uid:
                cells.fault(
                    "team",
                    _("The opening balance of this team was imported already, by %(uid)s.") % {"uid": uid},
                )
            if balance is not None:
                _check_wallet(cells, wallet, balance)
        lines.append(
            BalanceLine(
                row.number, cells.text("team"), team, balance, used,
                wallet.balance_micro if wallet and balance is not None else None, as_of, cells.faults,
            )
        )  # fmt: skip
    return BalancePreview(digest, own, first, lines)


def _check_wallet(cells: RowReader, wallet: Wallet | None, balance: int) -> None:
    if wallet is None:
        cells.fault("balance", _("This team has no wallet. Open one first, or leave the balance out."))
    elif not wallet.is_open:
        cells.fault("balance", _("This wallet is closed. Open it again first."))
    elif wallet.balance_micro + wallet.held_micro + balance > MOST_MICRO:
        cells.fault("balance", _("A wallet cannot hold so much."))


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if len(text) == 10 else None
    except ValueError:
        return None


def apply_balances(text: str, *, digest: str, rights: Rights, now: datetime) -> FinanceImport:
    """Apply a file that was previewed, all rows or none; a movement in each wallet, never an edit of a balance.

    ``digest`` is that of the preview. Raises Forbidden, Invalid naming ``digest``, or ``csv`` with each faulty row,
    Conflict for a file that was imported already, PeriodClosed.
    """
    require_finance(rights)
    require_previewed(text, digest)
    try:
        return with_retries(lambda: _apply(text, rights, now))
    except IntegrityError as error:
        raise refused(ImportKind.BALANCES, text_digest(text), error) from error


@transaction.atomic
def _apply(text: str, rights: Rights, now: datetime) -> FinanceImport:
    looked = preview_balances(text, rights=rights, now=now)
    require_faultless(looked.lines)
    assert looked.first is not None
    period = hold_month(looked.first)
    lock_wallets(line.team.pk for line in looked.lines if line.team and line.balance_micro is not None)
    # Balances may have moved, and wallets been closed, before their rows were locked.
    ready = preview_balances(text, rights=rights, now=now)
    require_faultless(ready.lines)
    book = FinanceImport.objects.create(
        kind=ImportKind.BALANCES, period=period, digest=ready.digest, currency=ready.currency, rows=len(ready.lines),
        made_by=rights.user, made_at=now,
    )  # fmt: skip
    rows = [
        OpeningBalance(
            book=book, line=line.number, team=line.team, period=period, balance_micro=line.balance_micro,
            used_micro=line.used_micro, as_of=line.as_of,
        )
        for line in ready.lines
        if line.as_of is not None
    ]  # fmt: skip
    _write(book, rows, rights, now)
    record(
        rights.user, "import.applied", book.uid, at=now, kind=book.kind, month=str(period), digest=book.digest,
        rows=book.rows, balance_micro=ready.balance_micro, used_micro=ready.used_micro,
    )  # fmt: skip
    return book


def undo_balances(book: FinanceImport, *, rights: Rights, now: datetime) -> FinanceImport:
    """Undo an import by one that reverses all its rows; raises Forbidden, Conflict, PeriodClosed.

    A wallet that has spent what it got keeps it from being undone.
    """
    require_finance(rights)
    return with_retries(lambda: _undo(book.pk, rights, now))


@transaction.atomic
def _undo(pk: int, rights: Rights, now: datetime) -> FinanceImport:
    book = FinanceImport.objects.select_related("period").get(pk=pk)
    period = hold_month(book.period.month)
    lock_wallets(OpeningBalance.objects.filter(book=book).values_list("team", flat=True))
    book = FinanceImport.objects.select_for_update(of=("self",)).select_related("period").get(pk=pk)
    if not undoable(book):
        raise Conflict(_("This import was undone already, or undoes another one."))
    made = FinanceImport.objects.create(
        kind=book.kind, period=period, digest=book.digest, currency=book.currency, rows=book.rows, reverses=book,
        is_live=False, made_by=rights.user, made_at=now,
    )  # fmt: skip
    rows = [
        OpeningBalance(
            book=made, line=row.line, team=row.team, period=period, balance_micro=_negated(row.balance_micro),
            used_micro=_negated(row.used_micro), as_of=row.as_of, is_live=False,
        )
        for row in OpeningBalance.objects.filter(book=book).select_related("team")
    ]  # fmt: skip
    _write(made, rows, rights, now)
    record(
        rights.user, "import.undone", book.uid, at=now, kind=book.kind, month=str(period), by=made.uid,
        rows=book.rows, balance_micro=sum(row.balance_micro or 0 for row in rows),
        used_micro=sum(row.used_micro or 0 for row in rows),
    )  # fmt: skip
    return made


def _negated(micro: int | None) -> int | None:
    return None if micro is None else -micro


def _write(book: FinanceImport, rows: Sequence[OpeningBalance], rights: Rights, now: datetime) -> None:
    """Write the rows of an import and their movements."""
    OpeningBalance.objects.bulk_create(rows, batch_size=1000)
    amounts = {row.team_id: row.balance_micro for row in rows if row.balance_micro is not None}
    post_together(amounts, reference=f"opening balance {book.uid}", actor=rights.user, now=now)
