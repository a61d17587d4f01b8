"""An agent is stopped and a newer one started in its place, as processes: what they hold does not notice."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import DesiredSlot, LeaseReport, Report
from tests.agent.builder import lease
from tests.agent.fake_portal import FakePortal, listening

FACTS = device_facts("gpu-01", "h100-80gb", 2)
START = "import sys, nodeagent; nodeagent.__version__ = {version!r}; from nodeagent.cli import main; sys.exit(main())"


@asynccontextmanager
async def process(
    port: int, state: Path, version: str, *more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an agent of a version as its unit would, and stop it as its unit would."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", START.format(version=version),
        "--portal", f"ws://127.0.0.1:{port}", "--node", "gpu-01", "--state", str(state),
        "--driver", "simulated", "--board", "h100-80gb", "--count", "2", "--log-level", "error", *more,
    )  # fmt: skip
    try:
        yield agent
    finally:
        if agent.returncode is None:
            agent.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(agent.wait(), 10) == 0


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> FakePortal:
    monkeypatch.setattr("tests.agent.fake_portal.PATIENCE_S", 20)  # an interpreter has to start
    return FakePortal()


def one(report: Report, name: str) -> LeaseReport:
    return next(entry for entry in report.leases if entry.lease == name)


async def test_leases_keep_their_partition_and_their_clock_over_an_upgrade(portal, tmp_path):
    held = lease("lse-1", DesiredSlot(FACTS[0].uuid, "mig", 0, 1, 125, 9984, "1g.10gb"))
    share = lease("lse-2", DesiredSlot(FACTS[1].uuid, "mps", 0, 0, 250, 20_000))
    async with listening(portal) as port:
        async with process(port, tmp_path, "1.0.0", "--enrol-token", "once"):
            await portal.kind(Report)
            await portal.desire(held, share)
            before = [await portal.phase(name, "ready") for name in ("lse-1", "lse-2")]
        since = asyncio.get_running_loop().time()
        portal.forget()

        async with process(port, tmp_path, "1.1.0"):
            after = [await portal.phase(name, "ready") for name in ("lse-1", "lse-2")]
            told = [
                entry.phase
                for report in portal.heard
                if isinstance(report, Report)
                for entry in report.leases
            ]
            at_least_ms = (asyncio.get_running_loop().time() - since) * 1000
            await portal.desire()
            gone = await portal.phase("lse-1", "gone")

    assert [hello.agent_version for hello in portal.hellos] == ["1.0.0", "1.1.0"]
    assert set(told) == {"ready"}, "nothing was made anew and nothing was lost"
    for name, was, is_now in zip(("lse-1", "lse-2"), before, after, strict=True):
        assert one(is_now, name).access == one(was, name).access
    ran_ms = one(gone, "lse-1").active_ms
    assert ran_ms is not None
    assert ran_ms >= int(at_least_ms), "the clock went on while an interpreter ended and another one began"
    assert portal.epoch == 1
