from __future__ import annotations

import pytest

from tests.agent.systemd_bench import Host


@pytest.fixture
def host() -> Host:
    return Host()
