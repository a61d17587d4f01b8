"""A pasted or chosen CSV file as rows: a head that names the columns, commas or semicolons, any line ends."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from portal.common.errors import Invalid

MARK = "\ufeff"
# Characters of a file that finance imports: what a form and a call take (DATA_UPLOAD_MAX_MEMORY_SIZE, FileParser).
MOST_TEXT: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One row: the number of its line in the file, trimmed cells by column, and whether it has cells too many."""

    number: int
    cells: dict[str, str]
    is_too_long: bool


@dataclass(frozen=True, slots=True)
class CsvFile:
    """The rows of a file and what separates its cells."""

    rows: list[CsvRow]
    delimiter: str


def plain_text(text: str) -> str:
    """Return the text of a file without what editors and browsers change: its mark, line ends and blank ends."""
    return text.removeprefix(MARK).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")


def read_rows(text: str, *, columns: Collection[str], needed: Collection[str] = (), example: str) -> CsvFile:
    """Return the rows of a file; raises Invalid naming ``csv`` for what is no such file.

    Blank lines are left out. ``example`` is a head to show to somebody whose file has none.
    """
    text = plain_text(text)
    head = text.partition("\n")[0]
    delimiter = ";" if head.count(";") > head.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [cell.strip().lower() for cell in next(reader, [])]
        # A row may go over several lines: it is called by the last of them.
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        where = _("line %(n)d: %(why)s") % {"n": reader.line_num, "why": error}
        raise unusable(_("This is no CSV file: %(why)s.") % {"why": where}) from error
    if not any(names):
        raise unusable(_("The first line names the columns, for example: %(head)s") % {"head": example})
    if any(name not in columns for name in names) or len(set(names)) < len(names):
        known = ", ".join(columns)
        raise unusable(_("Use each of these columns once at most: %(known)s.") % {"known": known})
    missing = [name for name in needed if name not in names]
    if missing:
        raise unusable(_("These columns are missing: %(names)s.") % {"names": ", ".join(missing)})
    found = [
        CsvRow(
            number,
            {name: cell.strip() for name, cell in zip(names, row, strict=False)},
            len(row) > len(names),
        )
        for number, row in rows
    ]
    return CsvFile(found, delimiter)


def unusable(sentence: str) -> Invalid:
    """Return the refusal of a file as a whole."""
    return Invalid(fields={"csv": sentence})
