"""A schema that was kept and laid down again is the one that migrations made."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from portal.embedded import discovery, schema_cache
from tests.engines import shared_folder

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(shared_folder() is None, reason="DATABASE_URL names a server of others"),
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def another() -> Iterator[str]:
    """Address of an empty database."""
    name = f"{connection.settings_dict['NAME']}_another"
    with psycopg.connect(address("postgres"), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        yield address(name)
        server.execute(f"DROP DATABASE {name}")


def address(name: str) -> str:
    return os.environ["DATABASE_URL"].replace("/berth?", f"/{name}?")


def content(url: str) -> str:
    """Schema and rows, but for a word of chance and for casts: PostgreSQL moves those of an array to its members."""
    program = discovery.postgres(os.environ).bin / "pg_dump"
    said = subprocess.run([program, "--no-owner", url], capture_output=True, text=True, check=True).stdout
    return re.sub(r"(?m)^\\(un)?restrict .*$|::character varying|::text(\[\])?|[()]", "", said)


@pytest.mark.deep
def test_what_was_kept_is_laid_down_as_migrations_made_it(env: dict[str, str], another: str) -> None:
    migrated = address(connection.settings_dict["NAME"])

    assert not schema_cache.restore(another, env)
    schema_cache.keep(migrated, env)
    assert schema_cache.restore(another, env)

    assert "CREATE TRIGGER" in content(migrated)
    assert content(another) == content(migrated)
    folder = Path(env["XDG_CACHE_HOME"]) / "berth-schema"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.suffix for file in folder.iterdir()] == [".sql"]


def test_of_several_that_begin_at_once_one_migrates_alone(
    env: dict[str, str], another: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated, asked, found = address(connection.settings_dict["NAME"]), threading.Semaphore(0), []
    restore = schema_cache.restore

    def asking(url: str, env: dict[str, str]) -> bool:
        is_kept = restore(url, env)
        asked.release()
        return is_kept

    def second_migrates() -> None:
        with psycopg.connect(another) as there:
            found.append(there.execute("SELECT to_regclass('leases_lease') IS NOT NULL").fetchone())

    second = threading.Thread(target=schema_cache.fill, args=(another, env, second_migrates))

    def first_migrates() -> None:
        second.start()
        for _both_asked in range(3):
            assert asked.acquire(timeout=60)

    monkeypatch.setattr(schema_cache, "restore", asking)
    schema_cache.fill(migrated, env, first_migrates)
    second.join(60)

    assert found == [(True,)], "the other one waited and laid down what the first had made"


def test_what_is_broken_or_of_other_migrations_changes_nothing(
    env: dict[str, str], another: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema_cache.keep(address(connection.settings_dict["NAME"]), env)
    (kept,) = (Path(env["XDG_CACHE_HOME"]) / "berth-schema").iterdir()
    kept.write_text(kept.read_text().replace("CREATE TRIGGER", "CREATE NOTHING"))
    empty = content(another)

    with monkeypatch.context() as other:
        other.setattr(schema_cache.fingerprint, "of_installed", lambda: "another")
        assert not schema_cache.restore(another, env)
    assert not schema_cache.restore(another, env)

    assert content(another) == empty
    assert not kept.exists()


def test_a_disk_that_takes_nothing_is_no_fault(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    schema_cache.keep(address("postgres"), {**env, "XDG_CACHE_HOME": str(tmp_path / "file")})
