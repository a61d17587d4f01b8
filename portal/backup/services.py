"""Copies of the database by PostgreSQL's own tools, and their way back (docs/backup.md)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader

from portal.audit.services import record
from portal.common.clock import db_now
from portal.common.invariants import INVARIANTS, Breach, broken
from portal.common.sql import fetch
from portal.embedded.discovery import postgres
from portal.embedded.errors import CannotStart
from portal.fleet.models import Node
from portal.fleet.services import raise_revision

MAGIC = b"PGDMP"
VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
# Everything of ours lies in this schema; psql runs this and the dump's statements as one transaction.
ANEW = "DROP SCHEMA IF EXISTS public CASCADE;\nCREATE SCHEMA public;\n"


class BackupFailed(Exception):
    """A copy was not made or not brought back; the sentence says why and what to do. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class RestoredDatabase:
    """What a database is after its restore: rows by table, how many promises hold, and those that do not."""

    rows: dict[str, int]
    promises: int
    breaches: list[Breach]


def backup(to: Path, *, now: datetime) -> Path:
    """Write a copy of the database as it is now and return the file; raises BackupFailed.

    ``to`` is a folder, where the file is named by the time, or a file that is not there yet. Only its owner may
    read it. It appears whole or not at all; people may go on working meanwhile.
    """
    path = to / f"berth-{now:%Y%m%dT%H%M%SZ}.dump" if to.is_dir() else to
    if path.exists():
        raise BackupFailed(f"{path} is there already; name another file, or a folder")
    if not path.parent.is_dir():
        raise BackupFailed(f"{path.parent} is no folder; make it first")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)  # made with mode 0600
    draft = Path(name)
    try:
        _run(_tool("pg_dump"), ["--format=custom", "--no-owner", "--no-privileges", f"--file={draft}"])
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def restore(file: Path, *, replaces: bool = False, while_running: bool = False) -> RestoredDatabase:
    """Bring a copy back, bring it up to this version, raise what its nodes know, and check every promise.

    One transaction takes out what is there and brings in the copy: when it fails nothing was changed. Raises
    BackupFailed: for a database that has tables, unless it ``replaces`` them; while others work with it, unless
    ``while_running``; for a copy of a newer version.
    """
    if not file.is_file() or not _is_dump(file):
        raise BackupFailed(f"{file} is no copy that `manage.py backup` made")
    name = _take_a_name()
    is_used = _tables() > 0
    if is_used and not replaces:
        raise BackupFailed(
            f"the database {connection.settings_dict['NAME']} is not empty; name an empty one with DATABASE_URL, "
            "or say --replace to give up what is in it"
        )
    others = 0 if while_running else _others(name)
    if others:
        raise BackupFailed(
            f"{others} other connections work with this database; stop Berth first (web, worker, beat), "
            "or say --while-running and restart it afterwards"
        )
    with tempfile.TemporaryDirectory(prefix="berth-restore-") as folder:
        told, script = Path(folder) / "dump.sql", Path(folder) / "restore.sql"
        _run(_tool("pg_restore"), ["--no-owner", "--no-privileges", f"--file={told}", str(file)])
        _prepare(told, script, server=_server())
        told.unlink()
        psql = _tool("psql")
        _forget_connections()
        anew = [f"--command={ANEW}"] if is_used else []
        _run(
            psql,
            ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null",
             *anew, f"--file={script}"],
        )  # fmt: skip
    _forget_connections()
    call_command("migrate", interactive=False, verbosity=0)
    _mark(file)
    with transaction.atomic():
        breaches = broken()
    return RestoredDatabase(row_counts(), len(INVARIANTS), breaches)


def row_counts() -> dict[str, int]:
    """Return how many rows each table of ours has, by its name."""
    # What lies in partitions counts once, for their table.
    names = fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition ORDER BY relname"
    )
    counts = {}
    for (name,) in names:
        quoted = connection.ops.quote_name(name)
        ((counts[name],),) = fetch(f"SELECT count(*) FROM {quoted}")  # noqa: S608 (names of our own tables)
    return counts


@transaction.atomic
def _mark(file: Path) -> None:
    """Note that a restore happened and raise each node's revision: what an agent last saw may be newer than the copy.

    How far above that the revision has to be is told by the agent when it says hello.
    """
    now = db_now()
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    record(None, "database.restored", file.name[:200], at=now, sha256=digest.hexdigest())
    raise_revision(list(Node.objects.values_list("pk", flat=True)))


def _tables() -> int:
    ((tables,),) = fetch("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    return int(tables)


def _take_a_name() -> str:
    """Return the name that connections of this process carry from here on, taken before the first is made.

    The server still lists one for a moment after it was closed: without a name it would count as somebody else's.
    """
    name = f"berth-restore-{os.getpid()}"
    os.environ["PGAPPNAME"] = name  # libpq's own setting
    return name


def _others(name: str) -> int:
    """Return how many connections of other programs there are: those of this process carry ``name``."""
    _forget_connections()
    ((others,),) = fetch(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND application_name <> %s",
        [name],
    )
    return int(others)


def _is_dump(file: Path) -> bool:
    with file.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def _forget_connections() -> None:
    """Leave no connection whose plans belong to tables of before."""
    connection.close()
    close_pool = getattr(connection, "close_pool", None)
    if close_pool is not None:
        close_pool()


def _prepare(source: Path, target: Path, *, server: int) -> None:
    """Copy a dump's statements for psql, ours before them; raises BackupFailed for those of a newer Berth.

    Tools from PostgreSQL 17 on write a setting that older servers do not know.
    """
    known = MigrationLoader(None).disk_migrations
    apps = {app for app, _name in known}
    newer, is_in = [], False
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            if line.startswith(b"COPY public.django_migrations "):
                is_in = True
            elif is_in and line.startswith(b"\\."):
                is_in = False
            elif is_in:
                _id, app, name, *_rest = line.decode().split("\t")
                if app in apps and (app, name) not in known:
                    newer.append(f"{app}.{name}")
            if not (server < 17 and line.startswith(b"SET transaction_timeout")):
                out.write(line)
    if newer:
        raise BackupFailed(
            f"the copy is of a newer Berth ({', '.join(newer[:3])}); bring the program up to that version first"
        )


def _server() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        (version,) = cursor.fetchone()
    return int(version) // 10_000


def _run(tool: Path, words: Sequence[str]) -> None:
    """Run one of PostgreSQL's tools on our database; raises BackupFailed with its last words."""
    done = subprocess.run(  # noqa: S603 (PostgreSQL's own tool, words and no shell line)
        [str(tool), *words],
        env=_libpq(os.environ, connection.settings_dict),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode}"
        raise BackupFailed(f"{tool.name} failed: {said}")


def _tool(name: str) -> Path:
    """Return the oldest tool here that is as new as the server: older ones refuse its dumps."""
    server = _server()
    found = []
    with suppress(CannotStart):
        found.append(postgres(os.environ).bin / name)
    if on_path := shutil.which(name):
        found.append(Path(on_path))
    if fitting := sorted((major, tool) for tool in found if (major := _major(tool)) >= server):
        return fitting[0][1]
    have = ", ".join(f"{_major(tool)} in {tool.parent}" for tool in found) or "none"
    raise BackupFailed(
        f"{name} of PostgreSQL {server} or later is needed, here is {have}; install the client tools of the server"
    )


def _major(tool: Path) -> int:
    try:
        said = subprocess.run(  # noqa: S603 (as above)
            [str(tool), "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = VERSION.search(said)
    return int(match[1]) if match else 0


def _libpq(env: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, str]:
    """Return the address of our database as libpq reads it; a password never becomes a word of a command line."""
    options = told.get("OPTIONS") or {}
    given = {
        "PGHOST": told.get("HOST") or options.get("host"),
        "PGPORT": told.get("PORT") or options.get("port"),
        "PGUSER": told.get("USER") or options.get("user"),
        "PGPASSWORD": told.get("PASSWORD") or options.get("password"),
        "PGDATABASE": told["NAME"],
        "PGSSLMODE": options.get("sslmode"),
        "PGSSLROOTCERT": options.get("sslrootcert"),
        "PGSERVICE": options.get("service"),
    }
    return dict(env) | {name: str(value) for name, value in given.items() if value}
