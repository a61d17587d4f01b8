"""Tests empty tables that nobody else may, past the triggers; the flush between tests does so too (conftest).

``session_replication_role`` needs a superuser of PostgreSQL, which the tests' servers are run by. Nothing in the
product sets it, and an installation whose portal signs in as an ordinary role cannot.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

PAST_TRIGGERS = "SET LOCAL session_replication_role = replica"


def empty(tables: Iterable[str]) -> None:
    """Empty tables inside a test's transaction."""
    named = ", ".join(f'"{table}"' for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(PAST_TRIGGERS)
        cursor.execute(f"TRUNCATE {named} CASCADE")
        cursor.execute("SET LOCAL session_replication_role = origin")
