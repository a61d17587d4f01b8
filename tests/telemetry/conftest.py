from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio
from django.db import connections

from nodeagent.protocol.messages import DeviceSample, Samples, SlotSample
from portal.common.live import redis_client
from portal.leases.models import Lease, Placement
from portal.telemetry import periodic as clockwork
from portal.telemetry.ingest import MINUTES
from portal.telemetry.latest import LATEST
from portal.telemetry.ring import readings
from tests.portal.conftest import world  # noqa: F401


@pytest.fixture(autouse=True)
def _nothing_measured() -> None:
    readings.clear()


@pytest_asyncio.fixture
async def live(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> AsyncIterator[None]:
    """The live hub of this test's event loop, ticking only when told."""
    monkeypatch.setattr(clockwork, "TICK_S", 3600)
    await asyncio.to_thread(redis_client().delete, LATEST, MINUTES)
    clockwork.beat().start()
    await clockwork.hub().opened()
    yield
    await clockwork.beat().stop()


async def rows(work: Callable[[], Any]) -> Any:
    """Do database work from an async test, in a thread that hands its connection back."""

    def run() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


def samples_of(
    leases: list[Lease], *, seq: int, util: float | None = 50.0, memory_used_mib: int | None = 4000,
    boot_id: str = "boot-1", energy_mj: int | None = None,
) -> Samples:  # fmt: skip
    """Return what a node would say of leases at one second, whole devices and slots alike."""
    places = list(Placement.objects.filter(lease__in=leases).select_related("device", "lease"))
    devices = {place.device.uuid for place in places}
    return Samples(
        epoch=1,
        boot_id=boot_id,
        seq=seq,
        devices=tuple(
            DeviceSample(uuid, util, memory_used_mib, 300.0, 60.0, energy_mj, "nvml")
            for uuid in sorted(devices)
        ),
        slots=tuple(
            SlotSample(p.lease.uid, p.device.uuid, p.start, util, memory_used_mib, p.memory_mib, "gpm")
            for p in places
            if p.lease
        ),
    )


def unix(at: datetime) -> float:
    """Return Unix seconds."""
    return at.timestamp()
