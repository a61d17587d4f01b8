"""Now, as the database sees it: the only clock of money."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import connection


def db_now() -> datetime:
    """Return the database's wall clock, in UTC with microseconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    now: datetime = row[0]
    return now


def whole_second(at: datetime) -> datetime:
    """Return the instant floored to its second, in UTC: intervals cut so tile exactly.

    Two instants of one zone with a summer time would be subtracted by their wall clocks.
    """
    return at.astimezone(UTC).replace(microsecond=0)
