"""Fixtures of the portal's tests. Another folder takes them with one line in its conftest.py:

``from tests.portal.conftest import world  # noqa: F401``
"""

from __future__ import annotations

import pytest

from portal.common.live import redis_client
from portal.leases.forecasting import SNAPSHOT_KEY
from tests.portal.builders import World, build_world


@pytest.fixture
def world(db: None) -> World:
    """A whole small installation, fresh for this test; no picture of an earlier one is left published."""
    redis_client().delete(SNAPSHOT_KEY)
    return build_world()
