from __future__ import annotations

import pytest

from tests.engine.builder import Cluster


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
