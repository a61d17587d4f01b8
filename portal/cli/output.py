"""What goes to the terminal: data to stdout, messages to stderr, plain where it is no terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from portal.cli.formatting import clean

# Beside those that JSON escapes: control characters of the upper half, and those that turn the direction of text.
STEERS = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
MARK = "\ufeff"


def out_json(value: Any) -> None:
    """Print a value as JSON, with what could steer a terminal escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print(STEERS.sub(lambda found: json.dumps(found[0])[1:-1], text))


def out(value: Any) -> None:
    """Print one value on a line of its own."""
    print(clean(value))


def out_text(text: str) -> None:
    """Print a file that the portal made, as its lines are; a mark of UTF-8 at its begin stays."""
    if text.startswith(MARK):
        print(MARK, end="")
        text = text.removeprefix(MARK)
    for line in text.splitlines(keepends=True):
        body = line.rstrip("\r\n")
        print(clean(body) + line[len(body) :], end="")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Print rows as a table, or a sentence on stderr when there are none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(clean(cell)) for cell in row))
    if not shown.row_count:
        say(empty)
        return
    width = None if sys.stdout.isatty() else 200
    Console(width=width, soft_wrap=not sys.stdout.isatty()).print(shown)


def listing(
    found: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, as_json: bool
) -> None:
    """Print what was found as JSON where that was asked for, else its rows as a table."""
    if as_json:
        out_json(found)
    else:
        table(columns, rows, empty=empty)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one a line."""
    rows = [(name, clean(value)) for name, value in pairs]
    width = max(len(name) for name, _value in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def save(portal: Any, path: str, to: Path) -> None:
    """Write what is at an address of the API into a file, piece by piece, and say so."""
    with portal.download(path) as pieces:
        try:
            with to.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
        except OSError as error:
            raise typer.BadParameter(f"{to} cannot be written: {error.strerror}") from error
    say(f"{to} is written: {to.stat().st_size:,} bytes.")


def say(text: str) -> None:
    """Print a message for a person to stderr."""
    print(clean(text), file=sys.stderr)


def refused(problem: dict[str, Any]) -> None:
    """Print why the portal said no, and what to do next, to stderr."""
    say(f"Refused: {problem.get('detail') or problem.get('title') or 'no reason given'}")
    for entry in problem.get("errors", []):
        say(f"  {entry.get('field')}: {entry.get('detail')}")
    if problem.get("next"):
        say(str(problem["next"]))
    if problem.get("status") == 500:
        say(f"Request id: {problem.get('request_id')}")
