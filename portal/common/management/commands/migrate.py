"""``manage.py migrate`` without the limits that serve people: a migration takes as long as its tables are large."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate
from django.db import connections

LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")


class Command(migrate.Command):
    """Migrate; how long a lock is waited for stays limited, so that a portal at work is not held up."""

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Lift the limits of this connection, migrate, and bring them back."""
        connection = connections[options["database"]]
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET {name} = 0" for name in LIMITS))
        try:
            return super().handle(*args, **options)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("; ".join(f"RESET {name}" for name in LIMITS))
