from __future__ import annotations

from typing import Any

import pytest

from tests.portal.conftest import world  # noqa: F401


@pytest.fixture(autouse=True)
def _startable(settings: Any) -> None:
    """A gateway starts only with the portal's key."""
    settings.HAS_SECRET_KEY = True
    settings.GATEWAYS = [":1"]
