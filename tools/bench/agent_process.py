"""A real agent process at one frame a second, with a portal in this process at the other end.

``python -m tools.bench.agent_process …`` is the agent's own command line, with holders that keep their slices busy.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeagent import cli
from nodeagent.commands import simulated as simulating
from nodeagent.protocol.messages import DesiredLease, Message, Report, Samples
from nodeagent.simulation.full_host import FullHost
from tests.agent.fake_portal import FakePortal, listening
from tools.bench.machine import TICK_MS

NODE = "gpu-01"
SETTLE_S, MEASURE_S = 10, 60
SLICES = 56


def measure(driver: str, leases: Callable[[], tuple[DesiredLease, ...]]) -> dict[str, Any]:
    """Return CPU in percent of one core over a minute, memory after it, and the frames that came."""
    return asyncio.run(_measure(driver, leases()))


async def _measure(driver: str, leases: tuple[DesiredLease, ...]) -> dict[str, Any]:
    portal = FakePortal()
    with tempfile.TemporaryDirectory() as state:
        async with listening(portal) as port:
            words = [
                "--portal",
                f"ws://127.0.0.1:{port}",
                "--node",
                NODE,
                "--state",
                state,
                "--driver",
                driver,
            ]
            more = ["--board", "h100-80gb", "--count", "8", "--enrol-token", "once", "--log-level", "error"]
            agent = subprocess.Popen([sys.executable, "-m", "tools.bench.agent_process", *words, *more])
            try:
                return await _watch(portal, agent.pid, leases)
            finally:
                agent.terminate()
                agent.wait(20)


async def _watch(portal: FakePortal, pid: int, leases: tuple[DesiredLease, ...]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while portal.socket is None:
            await asyncio.sleep(0.05)
    await portal.desire(*leases, node=NODE)
    await portal.until(lambda message: _ready(message) == len(leases))
    await asyncio.sleep(SETTLE_S)
    portal.forget()
    before, begin = _cpu_ms(pid), time.monotonic()
    await asyncio.sleep(MEASURE_S)
    took, spent = time.monotonic() - begin, _cpu_ms(pid) - before
    frames = [message for message in portal.heard if isinstance(message, Samples)]
    busy = [slot.util_percent for slot in frames[-1].slots if slot.util_percent]
    if len(busy) != SLICES:
        raise RuntimeError(f"{len(busy)} of {SLICES} slices are busy: this measures something else")
    return {
        "cpu of one core, %": round(spent / took / 10, 2),
        "frames": len(frames),
        "busy slots in the last": len(busy),
        **_memory_mb(pid),
    }


def _ready(message: Message) -> int:
    return sum(lease.phase == "ready" for lease in message.leases) if isinstance(message, Report) else 0


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def _memory_mb(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    rows = {
        name: int(line.split()[1]) for line in lines for name in ("Rss", "Pss") if line.startswith(f"{name}:")
    }
    return {f"{name.lower()}_mb": round(value * 1024 / 1e6, 1) for name, value in rows.items()}


def work_in(home: FullHost, unit: str, *, is_stubborn: bool = False) -> None:
    """Start a holder's program in a unit."""
    home.world.spawn(home.systemd.units[unit].cgroup, user="alice", is_stubborn=is_stubborn)


def keep_busy(home: FullHost) -> None:
    """Start a program on every slice, each in one of the units."""
    units = sorted(home.systemd.units.values(), key=lambda unit: unit.name)
    slices = [(device, i) for device in home.host.devices for i in device.gpu.instances.values()]
    for unit, (device, instance) in zip(units, slices, strict=True):
        home.world.spawn(unit.cgroup, user="alice", gpu=device.uuid, gi=instance.id, memory_mib=6_000)


class BusyHome(FullHost):
    """A host whose holders begin to work once all slices are handed out."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        threading.Thread(target=self._move_in, daemon=True).start()

    def _move_in(self) -> None:
        while len(self.systemd.units) < SLICES:
            time.sleep(0.2)
        time.sleep(1.0)
        keep_busy(self)


if __name__ == "__main__":
    simulating.FullHost = BusyHome  # type: ignore[misc]
    sys.exit(cli.main(["run", *sys.argv[1:]], os.environ))
