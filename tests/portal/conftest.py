"""Fixtures of the portal's tests. Another folder takes them with one line in its conftest.py:

``from tests.portal.conftest import world  # noqa: F401``
"""

from __future__ import annotations

import pytest

from portal.common.live import redis_client
from portal.leases.forecasting import SNAPSHOT_KEY
from portal.telemetry.latest import LATEST
from portal.telemetry.processes import NEWEST, ORPHANS
from tests.portal.builders import World, build_world
from tests.portal.shared import shared  # noqa: F401


@pytest.fixture
def world(db: None) -> World:
    """A whole small installation, fresh for this test; nothing that nodes of an earlier one told is left in Redis."""
    redis_client().delete(SNAPSHOT_KEY, LATEST, NEWEST, ORPHANS)
    return build_world()
