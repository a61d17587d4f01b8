from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader

from portal.common.sql import execute, fetch
from portal.telemetry import partitions
from portal.telemetry.models import HourRollup, MinuteRollup
from portal.telemetry.partitions import HOURS, MINUTES, keep_partitions
from scheduler.tasks import keep_rollups

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 2, 10, 30, tzinfo=UTC)
DAY = timedelta(days=1)


def minute(at: datetime, lease_id: int = 7) -> MinuteRollup:
    return MinuteRollup.objects.create(lease_id=lease_id, minute=at, samples=60, util_mean=5.0)


def hour(at: datetime, lease_id: int = 7) -> HourRollup:
    return HourRollup.objects.create(lease_id=lease_id, hour=at, minutes=60, util_mean=5.0)


def lies_in(table: str) -> list[str]:
    return [name for (name,) in fetch(f"SELECT tableoid::regclass::text FROM {table} ORDER BY id")]


def test_days_and_months_that_are_kept_and_soon_to_come_have_partitions() -> None:
    made, _dropped = keep_partitions(now=NOW)

    days, months = list(partitions.partitions(MINUTES)), list(partitions.partitions(HOURS))
    assert made == len(days) + len(months)
    assert (days[0], days[-1]) == (datetime(2026, 2, 16, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC))
    assert len(days) == 18
    assert (months[0], months[-1]) == (datetime(2025, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
    assert len(months) == 14
    assert keep_partitions(now=NOW) == (0, 0)


def test_a_partition_that_is_over_goes_whole_and_the_next_ones_come() -> None:
    keep_partitions(now=NOW)
    minute(NOW - 14 * DAY)
    minute(NOW)
    hour(datetime(2025, 2, 28, 23, tzinfo=UTC))
    hour(NOW.replace(minute=0))

    made, dropped = keep_partitions(now=NOW + DAY)
    later = keep_partitions(now=NOW + 30 * DAY)

    assert (made, dropped) == (1, 1)
    assert later[1] == 19  # all eighteen days, and the February of last year
    assert MinuteRollup.objects.count() == 0
    assert HourRollup.objects.count() == 1


def test_how_long_they_are_kept_is_a_setting(settings: object) -> None:
    settings.MINUTES_KEEP_DAYS, settings.HOURS_KEEP_MONTHS = 30, 4  # type: ignore[attr-defined]

    keep_partitions(now=NOW)

    assert min(partitions.partitions(MINUTES)) == datetime(2026, 1, 31, tzinfo=UTC)
    assert min(partitions.partitions(HOURS)) == datetime(2025, 11, 1, tzinfo=UTC)


def test_rows_without_a_partition_are_taken_and_move_to_it_once_it_is_there() -> None:
    minute(NOW)
    minute(NOW - 40 * DAY)
    hour(NOW.replace(minute=0))
    before = lies_in("telemetry_minuterollup"), lies_in("telemetry_hourrollup")

    keep_partitions(now=NOW)

    assert before == (["telemetry_minuterollup_default"] * 2, ["telemetry_hourrollup_default"])
    assert lies_in("telemetry_minuterollup") == ["telemetry_minuterollup_p20260302"]  # the old one is gone
    assert lies_in("telemetry_hourrollup") == ["telemetry_hourrollup_p20260301"]


def test_each_slice_has_one_row_a_minute_and_one_an_hour_in_partitions_too() -> None:
    keep_partitions(now=NOW)
    minute(NOW)
    hour(NOW.replace(minute=0))

    with pytest.raises(IntegrityError, match="lease_id_minute"), transaction.atomic():
        minute(NOW)
    with pytest.raises(IntegrityError, match="hour"), transaction.atomic():
        hour(NOW.replace(minute=0))


def test_the_worker_keeps_partitions_by_itself() -> None:
    keep_rollups()

    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    assert {today - 14 * DAY, today, today + 3 * DAY} <= set(partitions.partitions(MINUTES))
    assert today.replace(day=1) in partitions.partitions(HOURS)


def test_what_asks_for_an_hour_of_a_lease_reads_one_partition() -> None:
    keep_partitions(now=NOW)

    plan = "\n".join(
        line
        for (line,) in fetch(
            "EXPLAIN SELECT * FROM telemetry_hourrollup WHERE lease_id = 7 AND hour >= %s AND hour < %s",
            [NOW, NOW + DAY],
        )
    )

    assert "telemetry_hourrollup_p20260301" in plan
    assert "p20260201" not in plan


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "empty"])
def test_the_migration_moves_the_rows_of_plain_tables(is_full: bool) -> None:
    plain = """
        DROP TABLE telemetry_minuterollup, telemetry_hourrollup;
    """
    loader = MigrationLoader(connection)
    before = loader.project_state(("telemetry", "0006_energy_refused"))
    execute(plain)
    with connection.schema_editor() as editor:
        for name in ("MinuteRollup", "HourRollup"):
            editor.create_model(before.apps.get_model("telemetry", name))
    times = [NOW, NOW - DAY, NOW - 400 * DAY] if is_full else []
    for at in times:
        minute(at)
        hour(at.replace(minute=0))
    known = MinuteRollup.objects.order_by("id").values_list(), HourRollup.objects.order_by("id").values_list()
    minutes, hours = (list(one) for one in known)

    with connection.schema_editor() as editor:
        loader.graph.nodes["telemetry", "0007_partitions"].apply(before, editor)

    assert [list(one.all()) for one in known] == [minutes, hours]
    assert lies_in("telemetry_minuterollup") == [f"telemetry_minuterollup_p{at:%Y%m%d}" for at in times]
    assert lies_in("telemetry_hourrollup") == [f"telemetry_hourrollup_p{at:%Y%m}01" for at in times]
    # New rows go on counting where the old ones ended.
    assert minute(NOW + DAY).pk > max((row[0] for row in minutes), default=0)
    keep_partitions(now=NOW)
    assert MinuteRollup.objects.count() == (3 if is_full else 1)
