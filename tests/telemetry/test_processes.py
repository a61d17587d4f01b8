from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from nodeagent.protocol.messages import ProcessSample, Samples
from portal.common.live import redis_client
from portal.fleet.models import Device
from portal.telemetry import processes
from portal.telemetry.ingest import accept_samples, intake
from tests.portal.builders import World
from tests.telemetry.conftest import rows, samples_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


@pytest.fixture(autouse=True)
def _no_lists() -> None:
    redis_client().delete(processes.NEWEST, processes.ORPHANS)


async def sent() -> None:
    """Return when everything taken so far has left for Valkey."""
    task = intake()._sending
    assert task is not None
    await asyncio.wait_for(task, 5)


async def take(
    world: World, seq: int, *listed: ProcessSample, after_s: float = 0, tells: bool = True
) -> None:
    node = world.nodes["gpu-01"]
    samples = Samples(1, "boot-1", seq, (), (), processes=listed if tells else None)
    assert await accept_samples(node.pk, node.name, samples, at=world.now + timedelta(seconds=after_s))
    await sent()


async def read(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def test_the_newest_list_of_a_node_is_kept_with_its_orphans_counted(world: World) -> None:
    uuid = await rows(lambda: Device.objects.filter(node__name="gpu-01").earliest("index").uuid)
    held = ProcessSample(11, uuid, "held", "lse-1", "python", 4000)
    orphan = ProcessSample(12, uuid, "orphan", "", "", None)

    await take(world, 1, held, orphan, replace(orphan, device="GPU-other"))

    found = await read(lambda: processes.processes_of("gpu-01", now=world.now))
    counts = await read(lambda: processes.orphans_by_node(["gpu-01", "gpu-03"], now=world.now))
    assert [(p.pid, p.state, p.memory_mib) for p in found.rows] == [
        (11, "held", 4000), (12, "orphan", None), (12, "orphan", None)
    ]  # fmt: skip
    assert found.orphans == 1
    assert counts == {"gpu-01": 1, "gpu-03": None}


async def test_frames_between_two_lists_leave_the_last_one_standing(world: World) -> None:
    await take(world, 1, ProcessSample(11, "GPU-1", "orphan"))

    await take(world, 2, after_s=1, tells=False)

    assert (await read(lambda: processes.processes_of("gpu-01", now=world.now))).orphans == 1


async def test_an_empty_list_is_good_news_and_no_list_is_unknown(world: World) -> None:
    unknown = await read(lambda: processes.processes_of("gpu-01", now=world.now))

    await take(world, 1)

    assert unknown is None
    assert (await read(lambda: processes.processes_of("gpu-01", now=world.now))).rows == ()
    assert await read(lambda: processes.orphans_by_node(["gpu-01"], now=world.now)) == {"gpu-01": 0}


async def test_a_list_that_is_old_says_nothing_of_the_present(world: World) -> None:
    await take(world, 1, ProcessSample(11, "GPU-1", "orphan"))
    later = world.now + timedelta(seconds=processes.FRESH_S + 1)

    assert await read(lambda: processes.processes_of("gpu-01", now=later)) is None
    assert await read(lambda: processes.orphans_by_node(["gpu-01"], now=later)) == {"gpu-01": None}


async def test_an_agent_that_lists_no_processes_sends_nothing_more(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]

    await accept_samples(node.pk, node.name, await rows(lambda: samples_of([lease], seq=1)), at=world.now)
    await sent()

    assert await read(lambda: redis_client().exists(processes.NEWEST, processes.ORPHANS)) == 0


async def test_a_lease_is_shown_its_own_processes_only_as_its_own_node_tells(world: World) -> None:
    await take(
        world, 1, ProcessSample(11, "GPU-1", "held", "lse-1"), ProcessSample(12, "GPU-1", "held", "lse-2")
    )

    own = await read(lambda: processes.processes_of_lease("gpu-01", "lse-1", now=world.now))
    elsewhere = await read(lambda: processes.processes_of_lease("gpu-03", "lse-1", now=world.now))

    assert [p.pid for p in own] == [11]
    assert elsewhere is None


async def test_what_cannot_be_read_is_unknown(world: World) -> None:
    for text in ("", "[]", "[1, 2, 3]", '["x", []]', "[1e300, []]", f"[{world.now.timestamp()}, [[1]]]"):
        await asyncio.to_thread(redis_client().hset, processes.NEWEST, "gpu-01", text)

        assert await read(lambda: processes.processes_of("gpu-01", now=world.now)) is None
