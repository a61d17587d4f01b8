"""What holds for every test."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis
import pytest
from django.conf import settings
from django.core.management.commands import flush as flush_command
from django.db import connection
from django.db.backends.postgresql.operations import DatabaseOperations
from django.utils import translation
from pytest_django import DjangoDbBlocker

from portal.common.retry import with_retries
from tests.emptying import PAST_TRIGGERS
from tests.engines import shared_folder
from tests.longest import longest_first
from tests.template import copy_template

# Where an agent of root keeps what a reboot may lose. A real one may be at work here.
REAL_RUN = "/run/berth-agent"
IDLE_IN_TESTS = "idle_in_transaction_session_timeout=10min"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = frozenset(
    {
        "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
        "os.truncate", "os.utime", "shutil.rmtree",
    }
)  # fmt: skip
touched: list[str] = []
MOST_LEFT_BYTES = 8_000_000
LIKE_THE_CODE = ("django_content_type", "auth_permission", "alerts_alertrule")
TESTS_UNTIL_VACUUM, MOST_DEAD_BYTES = 80, 200_000
tests_with_rows = itertools.count(1)


def _heed(event: str, args: tuple[Any, ...]) -> None:
    """Note what this process changes in the real run folder, by the interpreter's own word (sys.audit)."""
    if event not in CHANGES and not (event == "open" and isinstance(args[2], int) and args[2] & WRITES):
        return
    for one in args[:2]:
        path = os.fsdecode(one) if isinstance(one, str | bytes | os.PathLike) else ""
        if path == REAL_RUN or path.startswith(f"{REAL_RUN}/"):
            touched.append(f"{event} {path}")


sys.addaudithook(_heed)

# What is collected lives to the end; looking through it while it grows finds nothing.
OWN_PACE = gc.get_threshold()
gc.set_threshold(20_000, 20, 20)


# How long an example takes says how busy the machine is, nothing of the code.
hypothesis.settings.register_profile("berth", deadline=None)
hypothesis.settings.load_profile("berth")


def pytest_configure(config: pytest.Config) -> None:
    """Choose what makes the same tests cheaper."""
    # Each client of a test would list all static files first, of which it asks for none.
    settings.WHITENOISE_AUTOREFRESH = True
    settings.PASSWORD_HASHERS = ["tests.hasher.QuickArgon2", *settings.PASSWORD_HASHERS[1:]]
    # Nodes of tests serve at once; those about acceptance say otherwise.
    settings.ACCEPT_NODES = "auto"
    settings.PORTAL_KEY = "of-tests-alone-" * 4
    # A test is one transaction, which is idle for as long as a busy machine takes between two of its statements.
    options = settings.DATABASES["default"]["OPTIONS"]
    options["options"] = options["options"].replace("idle_in_transaction_session_timeout=15s", IDLE_IN_TESTS)
    # Files go to workers in our order; pytest-xdist's own begins with those of many tests, not of long ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files where several workers share them; alone the order of the folders is kept."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items, lambda item: item.path.relative_to(config.rootpath).as_posix())


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Set apart what stays, which the collector walked again and again; what tests leave goes as before."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*OWN_PACE)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Vacuum now and then: what tests rolled back lies in the tables, and each scan would walk past all of it.

    PostgreSQL's own vacuum is off. It would wake up every second, at work or not.
    """
    yield
    session = connection.connection
    if (
        session is None
        or session.closed
        or not session.autocommit
        or next(tests_with_rows) % TESTS_UNTIL_VACUUM
    ):
        return
    ((grown,),) = session.execute(
        "SELECT string_agg(oid::regclass::text, ', ') FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > %s",
        [MOST_DEAD_BYTES],
    )
    if grown:
        session.execute(f"VACUUM {grown}")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Each worker has a copy of one migrated database, and so has a session of one."""
    folder = shared_folder()
    if folder:
        with django_db_blocker.unblock():
            copy_template(folder)


@pytest.fixture(scope="session", autouse=True)
def flush_what_is_kept() -> None:
    """Let tests with transactions of their own empty tables that the database itself refuses to have emptied.

    Deleting the few rows of a test takes 2 ms of PostgreSQL, truncating all tables 54. The lock waits for whoever
    still writes, as truncating does. A process that a test killed may have left a session amid its work, for which
    the lock waits too long or in a circle: then again, as the portal itself does.
    """
    if getattr(DatabaseOperations, "flushes_what_is_kept", False):
        return
    flush, execute = DatabaseOperations.sql_flush, DatabaseOperations.execute_sql_flush

    def without_triggers(
        self: DatabaseOperations, style: Any, tables: Sequence[str], **given: Any
    ) -> list[str]:
        truncating = flush(self, style, [table for table in tables if table not in LIKE_THE_CODE], **given)
        if not truncating:
            return truncating
        names = [self.quote_name(table) for table in tables if table not in LIKE_THE_CODE]
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT sum(pg_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name", [names]
            )
            (size,) = cursor.fetchone()
        emptying = [f"LOCK TABLE {', '.join(names)} IN SHARE ROW EXCLUSIVE MODE"]
        emptying += [f"DELETE FROM {name}" for name in names]
        # What was deleted still lies there: nobody vacuums in tests.
        return [PAST_TRIGGERS, *(emptying if size < MOST_LEFT_BYTES else truncating)]

    def patiently(self: DatabaseOperations, sql_list: Sequence[str]) -> None:
        with_retries(lambda: execute(self, sql_list))

    # What Django would write again after each flush says which models there are, and stays instead.
    flush_command.emit_post_migrate_signal = lambda *_words, **_how: None  # type: ignore[attr-defined]
    DatabaseOperations.sql_flush = without_triggers  # type: ignore[method-assign]
    DatabaseOperations.execute_sql_flush = patiently  # type: ignore[method-assign]
    DatabaseOperations.flushes_what_is_kept = True  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Begin in English and leave no language behind: pages and commands set the thread's own and keep it."""
    translation.activate("en")
    yield
    translation.deactivate()


@pytest.fixture(autouse=True)
def real_run_folder() -> Iterator[None]:
    """Fail a test that changes the run folder of a real agent."""
    touched.clear()
    yield
    assert not touched, f"the run folder of a real agent was changed: {', '.join(touched)}"
