"""One worker migrates an empty database, the others copy it: its migrations take as long as a hundred tests.

What they make is kept (``portal.embedded.schema_cache``): stacks that tests start lay it down, as the next run does.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from django.conf import settings
from django.db import connection

from portal.embedded import schema_cache

NAME = "berth_template"


def copy_template(folder: Path) -> None:
    """Let this process's test database be a copy of the session's template; who comes first makes it.

    ``folder`` belongs to the session. Its server does too: another one may keep the template of an older tree.
    """
    with _alone(folder / "template.lock"):
        made = folder / "template.made"
        if not made.exists():
            _make()
            made.touch()
    test = connection.settings_dict["TEST"]
    test["TEMPLATE"], test["MIGRATE"] = NAME, False


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make() -> None:
    test, name = connection.settings_dict["TEST"], connection.settings_dict["NAME"]
    mine = test["NAME"]
    test["NAME"] = NAME
    url = os.environ["DATABASE_URL"].replace("/berth?", f"/{NAME}?")
    try:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {NAME}")  # of a worker that failed at this
            cursor.execute(f"CREATE DATABASE {NAME}")
        migrate = partial(connection.creation.create_test_db, verbosity=0, serialize=False, keepdb=True)
        schema_cache.fill(url, os.environ, migrate)
    finally:
        # PostgreSQL copies only a database that nobody has open.
        connection.close()
        connection.close_pool()
        test["NAME"] = mine
        settings.DATABASES[connection.alias]["NAME"] = connection.settings_dict["NAME"] = name
