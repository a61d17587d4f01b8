"""Reading trace files: CSV or lines, plain or gzip, with refusals that name file, line and column."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")
MOST_NUMBER = 10**15
# What may be wrong with jobs, and with changes to a history, by code; the portal has a sentence for each.
WHY = {
    "empty": "{path}, line {line}, column {column}: the value is empty.",
    "no_number": "{path}, line {line}, column {column}: the value is {value!r}, not a number.",
    "out_of_range": "{path}, line {line}, column {column}: the value is {value}, outside of {least} … {most}.",
    "no_column": "{path}, line 1: no column {missing}; needed are {needed}.",
    "no_csv": "{path}, line {line}: {said}.",
    "ragged": "{path}, line {line}: not as many cells as the header has.",
    "twice": "{path}, line {line}, column seq: the value {seq} stands in an earlier line as well.",
    "too_large": "{path}, line {line}, column gpus: the value is {gpus}, and the cluster has only {most} GPUs.",
    "no_job": "{path}: no job.",
    "bad_changes": "What-if is an object with demand, nodes and teams.",
    "bad_demand": "Demand is a number between {least} and {most}.",
    "bad_nodes": "Nodes is an object of at most {most} node names, each with how many more or fewer.",
    "bad_teams": "Teams is an object of at most {most} team names, each with how many more.",
    "bad_count": "{name}: give a whole number between {least} and {most}.",
    "too_many": "{count} requests: at most {most} can be played.",
    "no_node": "There is no node {name} to go by.",
    "no_team": "There is no team {name} to go by.",
    "too_many_nodes": "{nodes} nodes: at most {most} can be played.",
    "too_few_alike": "Only {alike} nodes are like {name}; {fewer} cannot be taken away.",
    "no_node_left": "No node would be left.",
}


class BadTrace(Exception):
    """A trace file cannot be used; the message says where and why."""


class TraceFault(BadTrace):
    """A BadTrace that people may read in their own language: a stable code of WHY, and its figures."""

    def __init__(self, code: str, **facts: Any) -> None:
        self.code, self.facts = code, facts
        super().__init__(WHY[code].format(**facts))


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
            raise self.fault("empty", column)
        return found

    def optional(self, column: str) -> str:
        """The cell as it stands, "" where the file has no such column."""
        return self.cells.get(column) or ""

    def integer(self, column: str, least: int = 0, most: int = MOST_NUMBER) -> int:
        """The cell as a whole number between ``least`` and ``most``."""
        return int(self._number(column, int, least, most))

    def number(self, column: str, least: float = 0.0) -> float:
        """The cell as a finite number of at least ``least``."""
        return float(self._number(column, float, least, MOST_NUMBER))

    def _number(self, column: str, read: Callable[[str], float], least: float, most: int) -> float:
        text = self.text(column)
        try:
            value = read(text)
        except ValueError:
            raise self.fault("no_number", column, value=text[:40]) from None
        if not least <= value <= most:
            raise self.fault("out_of_range", column, value=text[:40], least=f"{least:g}", most=most)
        return value

    def fault(self, code: str, column: str, **facts: Any) -> TraceFault:
        """What to raise when this line's column cannot be used, for a reason that is in WHY."""
        return TraceFault(code, path=self.path, line=self.line, column=column, **facts)

    def refusal(self, column: str, why: str) -> BadTrace:
        """What to raise when this line's column cannot be used."""
        return BadTrace(f"{self.path}, line {self.line}, column {column}: the value {why}.")


def rows(path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a CSV file with a header line; refuses when a needed column is missing."""
    yield from rows_of(_lines(path), path, needed)


def rows_of(lines: list[str], path: Path, needed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of the lines of a CSV file that refusals call ``path``."""
    reader = csv.DictReader(lines)
    try:
        head = reader.fieldnames or ()
    except csv.Error as error:
        raise TraceFault("no_csv", path=path, line=1, said=error) from None
    missing = [name for name in needed if name not in head]
    if missing:
        raise TraceFault("no_column", path=path, missing=", ".join(missing), needed=", ".join(needed))
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceFault("no_csv", path=path, line=reader.line_num, said=error) from None
        row = Row(path, reader.line_num, cast("dict[str, str]", cells))
        if None in cells or None in cells.values():
            raise TraceFault("ragged", path=path, line=reader.line_num)
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
