"""Usage of devices outside Berth, such as a cloud bill: read from a file, billed at the amounts that it gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.imports import (
    MOST_AMOUNT_MICRO,
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
from portal.billing.labels import NONE, kept_labels
from portal.billing.models import ExternalUsage, FinanceImport, ImportKind
from portal.billing.periods import zone_at
from portal.billing.selectors import currency
from portal.catalog.pricing import MINOR_MICRO
from portal.common.csv_rows import read_rows
from portal.common.errors import Conflict, Invalid
from portal.common.months import Months
from portal.common.retry import with_retries
from portal.teams.labels import Labels, tags_of
from portal.teams.models import Membership, Project, Team
from portal.teams.selectors import Rights, below

COLUMNS = (
    "source", "external_id", "team", "person", "project", "tags", "description", "start", "end", "gpus", "price",
    "amount", "currency",
)  # fmt: skip
NEEDED = ("source", "external_id", "team", "description", "start", "end", "gpus", "currency")
EXAMPLE = ",".join(COLUMNS)
MOST_SOURCE, MOST_ID, MOST_DESCRIPTION, MOST_GPUS = 40, 80, 60, 100_000


@dataclass(slots=True)
class ExternalLine:
    """A row of a file as it will be billed; ``faults`` are (column, sentence), empty where it can be."""

    number: int
    source: str
    external_id: str
    name: str
    team: Team | None
    person: User | None
    labels: Labels
    description: str
    starts_at: datetime | None
    ends_at: datetime | None
    gpu_milli: int | None
    amount_micro: int | None
    faults: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExternalPreview:
    """A file as it will be billed in the month ``first``, its first day; None where no row has a good time."""

    digest: str
    currency: str
    first: date | None
    lines: list[ExternalLine]

    @property
    def is_ready(self) -> bool:
        """Say whether all rows can be billed."""
        return not any(line.faults for line in self.lines)

    @property
    def amount_micro(self) -> int:
        """Return what all rows come to."""
        return sum(line.amount_micro or 0 for line in self.lines)

    @property
    def by_team(self) -> list[tuple[Team, int]]:
        """Return what each team pays, by name."""
        sums: dict[int, int] = {}
        teams = {line.team.pk: line.team for line in self.lines if line.team}
        for line in self.lines:
            if line.team:
                sums[line.team.pk] = sums.get(line.team.pk, 0) + (line.amount_micro or 0)
        return sorted(
            ((teams[pk], micro) for pk, micro in sums.items()), key=lambda pair: pair[0].name.lower()
        )


class _Known:
    """What rows may name, read once for all of them."""

    def __init__(self, rights: Rights) -> None:
        self.teams = TeamNames(rights)
        organisations = rights.teams_with(("finance",))
        rows = Membership.objects.filter(below(organisations, "team__")).select_related("user")
        self.people = {row.user.username: row.user for row in rows}
        projects = Project.objects.filter(below(organisations, "team__")).select_related("team")
        self.projects = {project.code.lower(): project for project in projects}
        self.taken = dict[tuple[str, str], str]()

    def look_up(self, pairs: Iterable[tuple[str, str]]) -> None:
        sources = {source for source, _external_id in pairs}
        rows = ExternalUsage.objects.filter(is_live=True, source__in=sources)
        self.taken = {
            (source, key): uid for source, key, uid in rows.values_list("source", "external_id", "book__uid")
        }


def preview_usage(text: str, *, rights: Rights, now: datetime) -> ExternalPreview:
    """Say what each row of a file would be billed as. Changes nothing.

    Raises Forbidden, Invalid naming ``csv`` for what is no such file, Conflict for one that was imported already.
    """
    require_finance(rights)
    file = read_rows(text, columns=COLUMNS, needed=NEEDED, example=EXAMPLE)
    require_rows(file)
    digest, own = text_digest(text), currency()
    require_new(ImportKind.USAGE, digest)
    known, months = _Known(rights), open_months(now=now)
    known.look_up((row.cells.get("source", ""), row.cells.get("external_id", "")) for row in file.rows)
    calendar = Months()
    zone = ZoneInfo(zone_at(calendar.of(now)))
    lines: list[ExternalLine] = []
    seen: dict[tuple[str, str], int] = {}
    first: date | None = None
    together = 0
    for row in file.rows:
        cells = RowReader(row, file.delimiter)
        source, key = _name(cells, "source", MOST_SOURCE), _name(cells, "external_id", MOST_ID)
        if (source, key) in seen:
            cells.fault("external_id", _("This id is on line %(n)d already.") % {"n": seen[source, key]})
        seen.setdefault((source, key), row.number)
        if (source, key) in known.taken:
            cells.fault(
                "external_id",
                _("This was imported already, by %(uid)s.") % {"uid": known.taken[source, key]},
            )
        team = cells.team(known.teams)
        cells.currency(own)
        starts, ends = _instant(cells, "start", zone), _instant(cells, "end", zone)
        if starts and ends:
            own_month = calendar.of(starts)
            if why := months.fault(own_month):
                cells.fault("start", why)
            else:
                first = first or own_month
                _check_times(cells, starts, ends, first, calendar, now)
        gpus = _gpus(cells)
        amount = _amount(cells, starts, ends, gpus)
        together += amount or 0
        if together > MOST_AMOUNT_MICRO:  # an invoice could not be told the sum of some thousand such rows
            cells.fault("amount", _("Up to here it is more than any file can have. Check the decimal signs."))
        lines.append(
            ExternalLine(
                row.number, source, key, cells.text("team"), team, _person(cells, known), _labels(cells, known, team),
                _name(cells, "description", MOST_DESCRIPTION), starts, ends, gpus,
                amount, cells.faults,
            )
        )  # fmt: skip
    return ExternalPreview(digest, own, first, lines)


def _name(cells: RowReader, column: str, most: int) -> str:
    text = cells.text(column)
    if not 1 <= len(text) <= most or not text.isprintable():
        cells.fault(column, _("Give 1 to %(n)d characters.") % {"n": most})
    return text[:most]


def _instant(cells: RowReader, column: str, zone: ZoneInfo) -> datetime | None:
    """Return an instant in whole seconds; without an offset it is in the zone of months."""
    try:
        at = datetime.fromisoformat(cells.text(column)[:40])
        at = (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        at = None
    if at is None or not 2000 <= at.year <= 2999 or at.microsecond:
        cells.fault(column, _("Write the time like 2026-11-30T12:00:00Z, in whole seconds."))
        return None
    return at


def _check_times(
    cells: RowReader, starts: datetime, ends: datetime, first: date, calendar: Months, now: datetime
) -> None:
    if ends <= starts:
        cells.fault("end", _("The end comes after the start."))
    elif ends > calendar.bounds(starts)[1]:
        cells.fault("end", _("A row ends in the month in which it starts. Give a row for each month."))
    elif ends > now:
        cells.fault("end", _("This time is yet to come."))
    if calendar.of(starts) != first:
        cells.fault(
            "start", _("All rows of a file are of one month: %(month)s.") % {"month": f"{first:%Y-%m}"}
        )


def _gpus(cells: RowReader) -> int | None:
    text = cells.text("gpus")
    try:
        count = Decimal(text.replace(",", ".") if cells.delimiter == ";" else text)
        milli = count * 1000
    except ArithmeticError:  # no number, or one that overflows
        count = milli = Decimal(-1)
    if not count.is_finite() or not 0 < count <= MOST_GPUS or milli != int(milli) or "_" in text:
        cells.fault("gpus", _("Give a number of GPUs above zero, with at most three decimals."))
        return None
    return int(milli)


def _person(cells: RowReader, known: _Known) -> User | None:
    name = cells.text("person")
    found = known.people.get(name)
    if name and found is None:
        cells.fault("person", _("Nobody of the organisation has this user name."))
    return found


def _labels(cells: RowReader, known: _Known, team: Team | None) -> Labels:
    code, project = cells.text("project"), known.projects.get(cells.text("project").lower())
    if code and (project is None or (team is not None and project.team_id not in team.lineage)):
        cells.fault("project", _("The team has no such project."))
        project = None
    try:
        tags = tags_of(cells.text("tags"))
    except Invalid as error:
        cells.fault("tags", str(error.fields["tags"]))
        tags = {}
    if project is None:
        return Labels(tags=tuple(sorted(tags.items())))
    return Labels(project.cost_centre, project.code, tuple(sorted({**project.tags, **tags}.items())))


def _amount(
    cells: RowReader, starts: datetime | None, ends: datetime | None, gpu_milli: int | None
) -> int | None:
    """Return the amount of a row, or what its price for a GPU-hour comes to, rounded once to the cent."""
    if bool(cells.text("amount")) == bool(cells.text("price")):
        cells.fault("amount", _("Give either an amount or a price for a GPU-hour."))
        return None
    if cells.text("amount"):
        return cells.amount("amount")
    price = cells.amount("price", is_price=True)
    if price is None or starts is None or ends is None or gpu_milli is None:
        return None
    seconds = int((ends - starts).total_seconds())
    exact = Decimal(price) * seconds * gpu_milli / 3_600_000 / MINOR_MICRO
    micro = int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP)) * MINOR_MICRO
    if micro > MOST_AMOUNT_MICRO:
        cells.fault("price", _("This is more than any row can have. Check the decimal sign."))
        return None
    return micro


def apply_usage(text: str, *, digest: str, rights: Rights, now: datetime) -> FinanceImport:
    """Bill the rows of a file that was previewed, all or none, in their month.

    ``digest`` is that of the preview. Raises Forbidden, Invalid naming ``digest``, or ``csv`` with each faulty row,
    Conflict for a file that was imported already, PeriodClosed.
    """
    require_finance(rights)
    require_previewed(text, digest)
    try:
        return with_retries(lambda: _apply(text, rights, now))
    except IntegrityError as error:
        raise refused(ImportKind.USAGE, text_digest(text), error) from error


@transaction.atomic
def _apply(text: str, rights: Rights, now: datetime) -> FinanceImport:
    ready = preview_usage(text, rights=rights, now=now)
    require_faultless(ready.lines)
    assert ready.first is not None
    period = hold_month(ready.first)
    book = FinanceImport.objects.create(
        kind=ImportKind.USAGE, period=period, digest=ready.digest, currency=ready.currency, rows=len(ready.lines),
        made_by=rights.user, made_at=now,
    )  # fmt: skip
    labels = kept_labels({line.labels for line in ready.lines if line.labels != NONE})
    rows = [
        ExternalUsage(
            book=book, line=line.number, period=period, team=line.team, user=line.person, source=line.source,
            external_id=line.external_id, description=line.description, starts_at=line.starts_at, ends_at=line.ends_at,
            gpu_milli=line.gpu_milli, amount_micro=line.amount_micro, currency=ready.currency,
            label_id=labels.get(line.labels),
        )
        for line in ready.lines
        if line.starts_at and line.ends_at and line.gpu_milli and line.amount_micro is not None
    ]  # fmt: skip
    ExternalUsage.objects.bulk_create(rows, batch_size=1000)
    record(
        rights.user, "import.applied", book.uid, at=now, kind=book.kind, month=str(period), digest=book.digest,
        rows=book.rows, amount_micro=ready.amount_micro,
    )  # fmt: skip
    return book


def undo_usage(book: FinanceImport, *, rights: Rights, now: datetime) -> FinanceImport:
    """Undo an import by one that reverses all its rows; raises Forbidden, Conflict, PeriodClosed."""
    require_finance(rights)
    if book.kind == ImportKind.ENERGY:
        raise Conflict(
            _("Electricity follows the energy record and its prices: Berth writes it anew where they change.")
        )
    return with_retries(lambda: _undo(book.pk, rights, now))


@transaction.atomic
def _undo(pk: int, rights: Rights, now: datetime) -> FinanceImport:
    book = FinanceImport.objects.select_related("period").get(pk=pk)
    period = hold_month(book.period.month)
    book = FinanceImport.objects.select_for_update(of=("self",)).select_related("period").get(pk=pk)
    if not undoable(book):
        raise Conflict(_("This import was undone already, or undoes another one."))
    amount = -sum(ExternalUsage.objects.filter(book=book).values_list("amount_micro", flat=True))
    made = reverse_rows(book, made_by=rights.user, now=now)
    record(
        rights.user, "import.undone", book.uid, at=now, kind=book.kind, month=str(period), by=made.uid, rows=book.rows,
        amount_micro=amount,
    )  # fmt: skip
    return made


def reverse_rows(book: FinanceImport, *, made_by: User | None, now: datetime) -> FinanceImport:
    """Return the import that reverses every row of one. Call inside a transaction that holds the month open."""
    made = FinanceImport.objects.create(
        kind=book.kind, period=book.period, digest=book.digest, currency=book.currency, rows=book.rows, reverses=book,
        is_live=False, made_by=made_by, made_at=now,
    )  # fmt: skip
    rows = list(ExternalUsage.objects.filter(book=book))
    for row in rows:
        row.pk, row.book, row.amount_micro, row.is_live = None, made, -row.amount_micro, False
        row._state.adding = True
    ExternalUsage.objects.bulk_create(rows, batch_size=1000)
    return made
