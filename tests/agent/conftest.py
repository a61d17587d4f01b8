from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.host.signals import keep_ignored_signals
from tests.agent.builder import SimulatedNode


@pytest.fixture(scope="session", autouse=True)
def signals_as_an_agent_has_them() -> None:
    """Let programs of leases hear Ctrl-C also where the suite itself runs in the background."""
    keep_ignored_signals()


@pytest.fixture(autouse=True)
def own_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give whoever names no run folder one of the test's: root's default is that of a real agent."""
    for place in ("commands.opening.ROOTS_RUN", "drivers.registry.RUN_DIR", "drivers.nvml.driver.RUN_DIR"):
        monkeypatch.setattr(f"nodeagent.{place}", tmp_path / "run-of-root")


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
