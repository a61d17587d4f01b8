"""Partitions of roll-ups: made ahead, and dropped whole once nothing in them is kept any longer.

Minutes have one for each day, hours one for each month, both of UTC. The default partition takes what none is for,
so that no row is ever refused; what is in it moves when its partition is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction

from portal.common.sql import fetch

AHEAD = timedelta(days=3)
# Whoever waits for a lock on a whole table holds up all that come after: rather try again a minute later.
PATIENCE = "1s"


@dataclass(frozen=True, slots=True)
class RollupTable:
    """A table in partitions by ``column``, each a ``unit`` long: "day" or "month"."""

    name: str
    column: str
    unit: str

    def first(self, at: datetime) -> datetime:
        """Return where the partition begins that an instant falls into."""
        begin = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return begin.replace(day=1) if self.unit == "month" else begin

    def after(self, begin: datetime) -> datetime:
        """Return where the partition after the one that begins then begins."""
        return self.first(begin + timedelta(days=32 if self.unit == "month" else 1))

    def partition(self, begin: datetime) -> str:
        """Return the name of the partition that begins then."""
        return f"{self.name}_p{begin:%Y%m%d}"


MINUTES = RollupTable("telemetry_minuterollup", "minute", "day")
HOURS = RollupTable("telemetry_hourrollup", "hour", "month")


def minutes_since(now: datetime) -> datetime:
    """Return the oldest minute that is kept: the begin of a day."""
    return MINUTES.first(now - timedelta(days=settings.MINUTES_KEEP_DAYS))


def hours_since(now: datetime) -> datetime:
    """Return the oldest hour that is kept: the begin of a month."""
    months = now.astimezone(UTC).year * 12 + now.astimezone(UTC).month - 1 - settings.HOURS_KEEP_MONTHS
    return datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)


def keep_partitions(*, now: datetime) -> tuple[int, int]:
    """Make the partitions that are missing from the oldest kept to some days ahead, and drop those that are over.

    Returns how many it made and how many it dropped. Safe to repeat, and for two workers at once. Raises
    OperationalError where others hold a table for longer than ``PATIENCE``; it goes on where it was next time.
    """
    made = dropped = 0
    for table, oldest in ((MINUTES, minutes_since(now)), (HOURS, hours_since(now))):
        made += _make(table, oldest, now + AHEAD)
        dropped += _drop(table, oldest)
    return made, dropped


def partitions(table: RollupTable) -> dict[datetime, str]:
    """Return the partitions that a table has but for the default one, by their begin."""
    rows = fetch(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = %s::regclass AND c.relname <> %s",
        [table.name, f"{table.name}_default"],
    )
    begins = {datetime.strptime(name, f"{table.name}_p%Y%m%d").replace(tzinfo=UTC): name for (name,) in rows}
    return dict(sorted(begins.items()))


def _make(table: RollupTable, oldest: datetime, until: datetime) -> int:
    wanted = {begin for (begin,) in fetch(
        f"SELECT DISTINCT date_trunc(%s, {table.column}, 'UTC') FROM {table.name}_default", [table.unit]  # noqa: S608
    )}  # fmt: skip
    begin = oldest
    while begin <= until:
        wanted.add(begin)
        begin = table.after(begin)
    if wanted <= set(partitions(table)):
        return 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
        # Two workers make them one after the other, and nobody adds to the rows that move.
        cursor.execute(f"LOCK TABLE {table.name}_default IN ACCESS EXCLUSIVE MODE")
        missing = sorted(wanted - set(partitions(table)))
        for begin in missing:
            name, end = table.partition(begin), table.after(begin)
            # Made apart and then attached: others go on reading and writing the table meanwhile.
            cursor.execute(
                f"CREATE TABLE {name} (LIKE {table.name} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
            )
            cursor.execute(
                f"WITH moved AS (DELETE FROM {table.name}_default"  # noqa: S608 (our own names)
                f" WHERE {table.column} >= %s AND {table.column} < %s RETURNING *)"
                f" INSERT INTO {name} SELECT * FROM moved",
                [begin, end],
            )
            cursor.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
            )
        cursor.execute("SET LOCAL lock_timeout TO DEFAULT")
    return len(missing)


def _drop(table: RollupTable, oldest: datetime) -> int:
    over = [name for begin, name in partitions(table).items() if table.after(begin) <= oldest]
    for name in over:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [PATIENCE])
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute("SET LOCAL lock_timeout TO DEFAULT")
    return len(over)
