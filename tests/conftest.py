"""What holds for every test."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db.backends.postgresql.operations import DatabaseOperations
from django.utils import translation
from pytest_django import DjangoDbBlocker

from tests.engines import shared_folder
from tests.longest import longest_first
from tests.template import copy_template

# What is collected lives to the end; looking through it while it grows finds nothing.
OWN_PACE = gc.get_threshold()
gc.set_threshold(20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Choose what makes the same tests cheaper."""
    # Each client of a test would list all static files first, of which it asks for none.
    settings.WHITENOISE_AUTOREFRESH = True
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


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Several workers migrate once: each has a copy of one migrated database."""
    folder = shared_folder()
    if folder:
        with django_db_blocker.unblock():
            copy_template(folder)


@pytest.fixture(scope="session", autouse=True)
def flush_what_is_kept() -> None:
    """Let tests with transactions of their own empty tables that the database itself refuses to have emptied."""
    if getattr(DatabaseOperations, "flushes_what_is_kept", False):
        return
    flush = DatabaseOperations.sql_flush

    def without_triggers(self: DatabaseOperations, *args: Any, **given: Any) -> list[str]:
        found = flush(self, *args, **given)
        return ["SET LOCAL session_replication_role = replica", *found] if found else found

    DatabaseOperations.sql_flush = without_triggers  # type: ignore[method-assign]
    DatabaseOperations.flushes_what_is_kept = True  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Begin in English and leave no language behind: pages and commands set the thread's own and keep it."""
    translation.activate("en")
    yield
    translation.deactivate()
