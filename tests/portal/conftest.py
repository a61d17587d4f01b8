"""Fixtures of the portal's tests. Another folder takes them with one line in its conftest.py:

``from tests.portal.conftest import world  # noqa: F401``
"""

from __future__ import annotations

import pytest

from tests.portal.builders import World, build_world


@pytest.fixture
def world(db: None) -> World:
    """A whole small installation, fresh for this test."""
    return build_world()
