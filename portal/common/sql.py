"""Statements written by us, carried out as they stand; what comes from outside goes into their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.db import connection

Row = tuple[Any, ...]


def fetch(sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
    """Return the rows of one statement written by us; what comes from outside goes into ``values``."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cast(list[Row], cursor.fetchall())


def execute(sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> int:
    """Carry out one statement written by us; returns how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def in_sql(states: Iterable[str]) -> str:
    """Return states as SQL writes a list of them, e.g. "('active', 'ended')"; only for states of our own enums."""
    return "(" + ", ".join(f"'{state}'" for state in states) + ")"
