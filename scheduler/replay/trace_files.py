"""Reading trace files: CSV or lines, plain or gzip, with refusals that name file, line and column."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")


class BadTrace(Exception):
    """A trace file cannot be used; the message says where and why."""


class Row:
    """One line of a table; every getter refuses with file, line and column."""

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self.path = path
        self.line = line
        self.cells = cells

    def text(self, column: str) -> str:
        """The cell as it stands; refuses an empty one."""
        found = self.cells.get(column) or ""
        if not found:
            raise self.refusal(column, "is empty")
        return found

    def optional(self, column: str) -> str:
        """The cell as it stands, "" where the file has no such column."""
        return self.cells.get(column) or ""

    def integer(self, column: str, least: int = 0) -> int:
        """The cell as a whole number of at least ``least``."""
        return int(self._number(column, int, least))

    def number(self, column: str, least: float = 0.0) -> float:
        """The cell as a finite number of at least ``least``."""
        return float(self._number(column, float, least))

    def _number(self, column: str, read: Callable[[str], float], least: float) -> float:
        text = self.text(column)
        try:
            value = read(text)
        except ValueError:
            raise self.refusal(column, f"is {text[:40]!r}, not a number") from None
        if not least <= value <= 1e15:
            raise self.refusal(column, f"is {text[:40]}, outside of {least:g} … 1e15")
        return value

    def refusal(self, column: str, why: str) -> BadTrace:
        """What to raise when this line's column cannot be used."""
        return BadTrace(f"{self.path}, line {self.line}, column {column}: the value {why}.")


def rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a CSV file with a header line; refuses when a needed column is missing."""
    yield from rows_of(_lines(path), path, needed)


def rows_of(lines: list[str], path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of the lines of a CSV file that refusals call ``path``."""
    reader = csv.DictReader(lines)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise BadTrace(f"{path}, line 1: no column {', '.join(missing)}; needed are {', '.join(needed)}.")
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadTrace(f"{path}, line {reader.line_num}: {error}.") from None
        row = Row(path, reader.line_num, cast("dict[str, str]", cells))
        if None in cells or None in cells.values():
            raise BadTrace(f"{path}, line {reader.line_num}: not as many cells as the header has.")
        yield row


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every line that is not empty."""
    for at, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield at, line.strip()


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig").splitlines()
    except (OSError, EOFError) as error:
        raise BadTrace(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path}: not UTF-8 text (byte {error.start}).") from None
