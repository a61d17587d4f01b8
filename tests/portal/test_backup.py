"""A copy of the database and its way back: what comes back is what was there, and every promise holds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from portal.backup import services
from portal.backup.services import BackupFailed, backup, row_counts
from portal.billing.metering import meter_all
from tests.portal.builders import World

ROOT = Path(__file__).parents[2]
COPY = "berth_restored"


def address(name: str) -> str:
    told = connection.settings_dict
    host = told["HOST"] or told.get("OPTIONS", {}).get("host", "")
    return f"postgresql://{told['USER']}@/{name}?host={quote(host, safe='/')}"


@pytest.fixture
def empty() -> Iterator[str]:
    """An empty database beside that of the tests."""
    with psycopg.connect(address("postgres"), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {COPY}")
        yield address(COPY)
        admin.execute(f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)")


def manage(database: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | {"DATABASE_URL": database, "BERTH_DEMO": "1"}
    return subprocess.run(
        [sys.executable, "manage.py", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


@contextmanager
def working_on(name: str) -> Iterator[None]:
    """Let this process work on another database of the server, as one that was started for it would."""
    told = connection.settings_dict
    was = told["NAME"]
    connection.close()
    connection.close_pool()
    told["NAME"] = name
    try:
        yield
    finally:
        connection.close()
        connection.close_pool()
        told["NAME"] = was


def sums(database: str) -> list[object]:
    """Return what the money hangs on: billed seconds, events and prices."""
    with psycopg.connect(database) as there:
        return [
            there.execute(query).fetchone()
            for query in (
                "SELECT sum(extract(epoch FROM upper(span) - lower(span)) * share_milli), count(*)"
                " FROM billing_usagerecord",
                "SELECT md5(string_agg(e::text, '|' ORDER BY e.id)) FROM leases_leaseevent e",
                "SELECT md5(string_agg(r::text, '|' ORDER BY r.id)) FROM catalog_rate r",
                "SELECT md5(string_agg(l::text, '|' ORDER BY l.id)) FROM leases_lease l",
            )
        ]


@pytest.mark.deep
@pytest.mark.django_db(transaction=True)
def test_what_comes_back_is_what_was_there(
    world: World, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGAPPNAME", "")  # a restore names its process there; no later test is to see that
    world.ended("bob", seconds=3600)
    world.active("bob", count=2)
    meter_all(now=world.now)
    before, money = row_counts(), sums(address(str(connection.settings_dict["NAME"])))

    copy = backup(tmp_path, now=world.now)
    done = manage(empty, "restore", str(copy))
    assert done.returncode == 0, done.stderr
    assert "promises hold" in done.stdout
    with working_on(COPY):
        with pytest.raises(CommandError, match="not empty"):
            call_command("restore", str(copy))
        call_command("backup", str(tmp_path / "second.dump"))
        call_command("restore", str(tmp_path / "second.dump"), replace=True)

    with psycopg.connect(empty) as there:
        found = {name: there.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in before}  # type: ignore[index]
        revisions = [r for (r,) in there.execute("SELECT desired_revision FROM fleet_node ORDER BY id")]
        entries = there.execute(
            "SELECT count(*) FROM audit_auditentry WHERE action = 'database.restored'"
        ).fetchone()
    assert {name: n for name, n in found.items() if n != before[name]} == {
        "audit_auditentry": before["audit_auditentry"] + 2
    }
    assert sums(empty) == money
    assert entries == (2,)
    was = list(
        world.nodes["gpu-01"].__class__.objects.order_by("id").values_list("desired_revision", flat=True)
    )
    assert revisions == [revision + 2 for revision in was]


@pytest.mark.django_db(transaction=True)
def test_a_copy_is_private_whole_and_never_over_another(world: World, tmp_path: Path) -> None:
    copy = backup(tmp_path / "a.dump", now=world.now)

    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert settings.SECRET_KEY.encode() not in copy.read_bytes()
    with pytest.raises(BackupFailed, match="there already"):
        backup(copy, now=world.now)
    with pytest.raises(BackupFailed, match="make it first"):
        backup(tmp_path / "none" / "a.dump", now=world.now)
    assert [file.name for file in tmp_path.iterdir()] == ["a.dump"]


@pytest.mark.django_db
def test_what_is_no_copy_is_refused_before_anything_is_touched(world: World, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.dump"
    wrong.write_text("no copy")

    for file in (wrong, tmp_path / "none"):
        with pytest.raises(CommandError, match="is no copy"):
            call_command("restore", str(file), replace=True)
    wrong.write_bytes(services.MAGIC + b"cut off")
    with pytest.raises(CommandError, match=r"not empty"):
        call_command("restore", str(wrong))
    with pytest.raises(CommandError, match=r"pg_restore failed"):
        call_command("restore", str(wrong), replace=True, while_running=True)
    assert world.teams["vision"].pk


@pytest.mark.django_db
def test_a_copy_of_a_newer_berth_is_refused(tmp_path: Path) -> None:
    told, script = tmp_path / "dump.sql", tmp_path / "restore.sql"
    rows = "1\tfleet\t0001_initial\t2026\n2\tfleet\t9999_later\t2026\n3\tgone_app\t0001_x\t2026\n\\.\n"
    told.write_text(f"SET transaction_timeout = 0;\nCOPY public.django_migrations (id) FROM stdin;\n{rows}")

    with pytest.raises(BackupFailed, match=r"fleet\.9999_later"):
        services._prepare(told, script, server=15)

    assert not script.read_text().startswith("SET transaction_timeout")


def test_a_password_is_never_a_word_of_a_command_line() -> None:
    told = {
        "NAME": "berth",
        "HOST": "db",
        "USER": "b",
        "PASSWORD": "s3cret",
        "OPTIONS": {"sslmode": "require"},
    }

    env = services._libpq({}, told)

    assert (env["PGPASSWORD"], env["PGSSLMODE"], env["PGDATABASE"]) == ("s3cret", "require", "berth")
