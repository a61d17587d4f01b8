"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.utils import translation


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """Begin in English and leave no language behind: pages and commands set the thread's own and keep it."""
    translation.activate("en")
    yield
    translation.deactivate()
