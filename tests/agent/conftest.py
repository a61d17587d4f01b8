from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.builder import SimulatedNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., SimulatedNode]:
    def make(model: str = "h100-80gb", count: int = 1, modes: tuple[str, ...] = ()) -> SimulatedNode:
        return SimulatedNode(tmp_path, model, count, modes)

    return make


@pytest.fixture
def unused_port() -> Callable[[], int]:
    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        return port

    return find
