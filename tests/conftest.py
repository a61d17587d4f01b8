"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.utils import translation
from pytest_django import DjangoDbBlocker

from tests.engines import shared_folder
from tests.template import copy_template


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: DjangoDbBlocker
) -> None:
    """Several workers migrate once: each has a copy of one migrated database."""
    folder = shared_folder()
    if folder:
        with django_db_blocker.unblock():
            copy_template(folder)


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Begin in English and leave no language behind: pages and commands set the thread's own and keep it."""
    translation.activate("en")
    yield
    translation.deactivate()
