"""A world is built once per process; every later one is the same rows again, put back in one statement.

Building takes about two hundred statements, putting back takes two. The rows are taken from a real
build that is rolled back, so they are what the services write, triggers and constraints included.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from django.db import connection, models, transaction

W = TypeVar("W")

# No other time in a world is this one: wherever it stands, the new world's "now" takes its place.
BUILT_AT = datetime(2025, 7, 1, 1, 2, 3, tzinfo=UTC)
# Numbers of different tables lie apart, so that a mistaken number finds nothing instead of a namesake.
APART = 97
# Written by Django and by migrations when the database is made..
NOT_OURS = {
    "alerts_alertrule",
    "audit_audithead",
    "auth_permission",
    "django_content_type",
    "django_migrations",
}


@dataclass(frozen=True)
class Kept:
    """What one build made: rows as JSON per table, and the objects that name them."""

    rows: dict[str, str]
    objects: bytes

    @property
    def question(self) -> str:
        """SQL: is there nothing yet where the rows will lie?"""
        return "SELECT NOT (" + " OR ".join(f'EXISTS (SELECT FROM "{table}")' for table in self.rows) + ")"

    @property
    def statement(self) -> str:
        """SQL that inserts all rows, with one parameter per table."""
        inserts = (
            f'in_{table} AS (INSERT INTO "{table}" SELECT * FROM json_populate_recordset(NULL::"{table}", %s::json))'
            for table in self.rows
        )
        return f"WITH {', '.join(inserts)} SELECT 1"


class Keeper(Generic[W]):
    """Makes worlds of one kind. ``build`` is called once per process, with the time that stands for now."""

    def __init__(self, build: Callable[[datetime], W]) -> None:
        self._build = build
        self._kept: Kept | None = None

    def world(self, now: datetime) -> W:
        """Return a new world at ``now``; beside rows that a test made before, it is built step by step."""
        if self._kept is None and _is_bare(tables := _tables()):
            self._kept = self._keep(tables)
        if self._kept is None:
            return self._build(now)
        with connection.cursor() as cursor:
            cursor.execute(self._kept.question)
            if cursor.fetchone() != (True,):
                return self._build(now)
            at = now.isoformat()
            rows = [rows.replace(BUILT_AT.isoformat(), at) for rows in self._kept.rows.values()]
            cursor.execute(self._kept.statement, rows)
        world: W = pickle.loads(self._kept.objects)
        _move(world, now)
        return world

    def _keep(self, tables: list[str]) -> Kept:
        _set_apart()
        with transaction.atomic():
            world = self._build(BUILT_AT)
            kept = Kept(_rows(tables), pickle.dumps(world))
            transaction.set_rollback(True)
        return kept


def _tables() -> list[str]:
    return sorted(set(connection.introspection.table_names()) - NOT_OURS)


def _is_bare(tables: list[str]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(Kept(dict.fromkeys(tables, ""), b"").question)
        return bool(cursor.fetchone() == (True,))


def _rows(tables: list[str]) -> dict[str, str]:
    """Return the rows of each table that has any, as the text of one JSON list."""
    found = {}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f'SELECT json_agg(t)::text FROM "{table}" t')
            ((rows,),) = cursor.fetchall()
            if rows is not None:
                found[table] = rows
    return found


def _set_apart() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(sequencename) FROM pg_sequences ORDER BY 1"
        )
        for n, (sequence,) in enumerate(cursor.fetchall(), 1):
            cursor.execute(
                "SELECT setval(%s::regclass, greatest(%s, (SELECT coalesce(last_value, 1) FROM pg_sequences"
                " WHERE format('%%I.%%I', schemaname, sequencename) = %s)))",
                [sequence, n * APART, sequence],
            )


def _move(world: Any, now: datetime) -> None:
    """Let the objects of a world be of ``now``, as their rows are."""
    if isinstance(world, models.Model):
        for name, value in vars(world).items():
            if value == BUILT_AT:
                setattr(world, name, now)
        return
    for name, value in vars(world).items():
        if value == BUILT_AT:
            setattr(world, name, now)
        elif isinstance(value, dict):
            for row in value.values():
                _move(row, now)
