"""The tables of a snapshot whose rows are the fields of a value, in order: one line per field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from scheduler.engine.json_values import flag, instant, items, known, mode, text, texts, us, whole, work
from scheduler.engine.model import Booking, Claim, DecayedUsage, Held, Outage, Running, TeamQuota

T = TypeVar("T")
Row = list[Any]


class Cell(NamedTuple):
    """How a field is read, and how it is written (None: as it is)."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None


def _counted(value: Any) -> int:
    return whole(value, 0)


def _one_or_more(value: Any) -> int:
    return whole(value, 1)


def _ids(value: Any) -> frozenset[int]:
    return frozenset(whole(one) for one in items(value))


def _slot(value: Any) -> int:
    return whole(value, 0, 64)


def _maybe_whole(value: Any) -> int | None:
    return None if value is None else whole(value)


def _maybe_us(value: Any) -> int | None:
    return None if value is None else us(value)


def _maybe_instant(value: Any) -> Any:
    return None if value is None else instant(value)


ANY, COUNT, SOME, SLOT = Cell(whole), Cell(_counted), Cell(_one_or_more), Cell(_slot)
MAYBE, KNOWN, TEXT, FLAG, WORK, MODE = (
    Cell(_maybe_whole), Cell(known), Cell(text), Cell(flag), Cell(work), Cell(mode),
)  # fmt: skip
TEXTS = Cell(texts, sorted)
IDS = Cell(_ids, sorted)
AT, MAYBE_AT = Cell(instant, us), Cell(_maybe_instant, _maybe_us)


class Table(Generic[T]):
    """Values of one kind as rows of cells, one cell per field."""

    def __init__(self, kind: Callable[..., T], *cells: Cell) -> None:
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        assert len(names) == len(cells), f"{kind}: {len(names)} fields, {len(cells)} cells"
        self._kind = kind
        self._get = attrgetter(*names)
        self._reads = [cell.read for cell in cells]
        self._writes = [(at, cell.write) for at, cell in enumerate(cells) if cell.write]

    def row(self, value: T) -> Row:
        """The value as a row."""
        row = list(self._get(value))
        for at, write in self._writes:
            row[at] = write(row[at])
        return row

    def value(self, row: Row) -> T:
        """The value of a row. Raises ValueError."""
        if len(row) != len(self._reads):
            raise ValueError(f"{len(row)} fields instead of {len(self._reads)}")
        return self._kind(*[read(cell) for read, cell in zip(self._reads, row, strict=True)])


HELD = Table(Held, ANY, SLOT, SLOT, MODE, ANY, MAYBE, AT, COUNT, COUNT, FLAG, TEXT, COUNT, COUNT)
CLAIM = Table(
    Claim, ANY, ANY, MODE, SOME, SOME, ANY, AT, TEXTS, TEXT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT,
    TEXT, TEXT, COUNT, COUNT, ANY, WORK, FLAG, MAYBE_AT, COUNT, COUNT, COUNT, COUNT, COUNT,
    FLAG, IDS, FLAG,
)  # fmt: skip
QUOTA = Table(TeamQuota, ANY, MAYBE, MAYBE, ANY, TEXT, COUNT, KNOWN, MAYBE)
RUNNING = Table(
    Running, ANY, ANY, ANY, ANY, ANY, AT, AT, COUNT, SOME, ANY, WORK, FLAG, FLAG, COUNT, COUNT, COUNT,
    MAYBE_AT, MAYBE, MAYBE_AT,
)  # fmt: skip
OUTAGE = Table(Outage, ANY, AT, AT, TEXT)
PERSON = Table(DecayedUsage, ANY, ANY, COUNT)


def booking_row(booking: Booking) -> Row:
    """A booking as a row: its start, then what it holds."""
    return [us(booking.starts_at), *HELD.row(booking.held)]


def booking(row: Row) -> Booking:
    """The booking of a row. Raises ValueError."""
    first, *rest = items(row)
    return Booking(instant(first), HELD.value(rest))
