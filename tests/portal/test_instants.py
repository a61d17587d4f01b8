from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import DataError

from portal.common.sql import fetch

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-29 01:59:59+00",
        "2026-03-29 01:59:59.1+00",
        "2026-10-25 02:30:00.000001+02:00",
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
    ],
)
def test_an_instant_comes_back_as_it_was_written_in_utc(text: str) -> None:
    ((found,),) = fetch("SELECT %s::timestamptz", [text])

    assert found == datetime.fromisoformat(text)
    assert found.tzinfo is UTC


def test_an_instant_beyond_the_calendar_is_refused_and_not_guessed() -> None:
    with pytest.raises(DataError):
        fetch("SELECT 'infinity'::timestamptz")


def test_nothing_is_read_as_unknown() -> None:
    assert fetch("SELECT NULL::timestamptz") == [(None,)]


def test_ranges_of_instants_are_in_utc_too() -> None:
    ((found,),) = fetch("SELECT tstzrange('2026-03-29 03:00+02', '2026-03-29 04:00+02')")

    assert found.lower == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert found.upper.tzinfo is UTC
