"""One installation for all tests of a file that only look at it, or undo what they change.

A scene of many objects takes longer to make than most tests take to look at it. A file that shares one names its
fixtures for the module; the transaction around them outlives the tests, which lie in it as savepoints do:

    @pytest.fixture(scope="module")
    def world(shared: Shared) -> World:
        return shared(build_world)

Objects of the world are the same in every test: whoever changes one in memory takes a world of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import pytest
from django.db import transaction
from pytest_django import DjangoDbBlocker

from portal.common.sql import execute

T = TypeVar("T")


class Shared(Protocol):
    """Makes something with the database that lasts as long as the file's tests."""

    def __call__(self, build: Callable[[], T]) -> T: ...


@pytest.fixture(scope="module")
def shared(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Shared]:
    """Open the transaction around the tests of a file."""

    def make(build: Callable[[], T]) -> T:
        with django_db_blocker.unblock():
            made = build()
            # What is checked at the end of a transaction is checked now: a table that waits for it cannot be altered.
            # All of it waits from the start here, so that nothing is left as it was not.
            execute("SET CONSTRAINTS ALL IMMEDIATE")
            execute("SET CONSTRAINTS ALL DEFERRED")
            return made

    with django_db_blocker.unblock():
        around = transaction.atomic()
        around.__enter__()
    yield make
    with django_db_blocker.unblock():
        transaction.set_rollback(True)
        around.__exit__(None, None, None)
