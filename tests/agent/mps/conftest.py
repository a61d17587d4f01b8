from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.mps_bench import Bench


@pytest.fixture(params=[2, 3], ids=["classic", "named"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, request.param)


@pytest.fixture
def classic(tmp_path: Path) -> Bench:
    return Bench(tmp_path, 2)


@pytest.fixture
def named(tmp_path: Path) -> Bench:
    return Bench(tmp_path, 3)
