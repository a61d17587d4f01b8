from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import DatabaseError, connection


def limits() -> list[str]:
    with connection.cursor() as cursor:
        found = []
        for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
            cursor.execute(f"SHOW {name}")
            found.append(cursor.fetchone()[0])
    return found


@pytest.mark.django_db
@pytest.mark.parametrize("fails", [False, True])
def test_migrating_is_not_stopped_by_the_limits_of_pages(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    seen: list[list[str]] = []

    def handle(self: migrate.Command, *args: Any, **options: Any) -> None:
        seen.append(limits())
        if fails:
            raise DatabaseError

    monkeypatch.setattr(migrate.Command, "handle", handle)
    before = limits()
    if fails:
        with pytest.raises(DatabaseError):
            call_command("migrate")
    else:
        call_command("migrate")

    assert "0" not in before
    assert seen == [["0", "0", before[2]]]
    assert limits() == before
