"""Instants from PostgreSQL by the standard library's own parser: a hundredth of what the usual reader costs.

A turn reads tens of thousands of them, and every page and report some dozens (docs/measurements.md).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader


class InstantLoader(TimestamptzLoader):
    """Reads a ``timestamptz`` in UTC; what the quick parser does not know goes the usual way."""

    timezone = UTC  # Django registers its own reader again where a cursor's zone differs from this

    def load(self, data: Buffer) -> datetime:
        """Return the instant in UTC. Raises psycopg.DataError for one beyond the calendar."""
        try:
            found = datetime.fromisoformat(str(data, "ascii"))
        except ValueError:
            found = super().load(data)
        return found if found.tzinfo is UTC else found.astimezone(UTC)


def _read_quickly(sender: Any, connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    if connection.vendor == "postgresql" and connection.connection is not None:
        connection.connection.adapters.register_loader("timestamptz", InstantLoader)


def install() -> None:
    """Use it on every connection made from now on."""
    connection_created.connect(_read_quickly, dispatch_uid="instants")
