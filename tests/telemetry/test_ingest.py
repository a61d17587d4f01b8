from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from nodeagent.protocol.messages import SlotSample
from portal.common.live import FRAMES, hub, redis_client
from portal.telemetry import ingest, selectors
from portal.telemetry.ingest import accept_samples, intake
from portal.telemetry.latest import LATEST
from portal.telemetry.ring import readings
from tests.portal.builders import World
from tests.telemetry.conftest import rows, samples_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


async def arrived() -> None:
    """Return when the frames sent so far have come back through Valkey."""
    heard = asyncio.Event()

    def note(_channel: str, _message: object) -> None:
        heard.set()

    hub().listen(FRAMES, note)
    await asyncio.wait_for(heard.wait(), 5)
    hub().leave(FRAMES, note)


async def test_samples_reach_the_ring_of_every_web_process_through_valkey(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]
    samples = await rows(lambda: samples_of([lease], seq=1, util=62.5, memory_used_mib=4100))

    taken = await accept_samples(node.pk, node.name, samples, at=world.now)
    await arrived()

    assert taken
    now = selectors.latest_for_leases([lease.uid, "lse-nobody"], now=world.now)
    assert now[lease.uid] is not None
    assert (now[lease.uid].util, now[lease.uid].memory_used_mib) == (62.5, 4100)
    assert now["lse-nobody"] is None
    assert readings.history("lease", lease.uid, now=world.now.timestamp()) == [
        (int(world.now.timestamp()), 62.5, 4100)
    ]


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_minutes_that_a_flushed_valkey_forgot_are_handed_over_once_more(
    world: World, is_flushed: bool
) -> None:
    lease = await rows(world.active)
    node, begin = world.nodes["gpu-01"], world.now.replace(second=0)
    await accept_samples(node.pk, node.name, await rows(lambda: samples_of([lease], seq=1)), at=begin)

    async def sent() -> list[str]:
        intake().flush(now=world.now.timestamp() + 130)
        await asyncio.wait_for(intake()._sending, 5)
        return await asyncio.to_thread(redis_client().lrange, ingest.MINUTES, 0, -1)

    first = await sent()
    if is_flushed:
        await asyncio.to_thread(redis_client().flushdb)
    second = await sent()
    third = await sent()

    assert len(first) == 1
    assert first == second == third


async def test_a_reading_that_is_old_is_unknown(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]
    await accept_samples(node.pk, node.name, await rows(lambda: samples_of([lease], seq=1)), at=world.now)
    await arrived()

    later = selectors.latest_for_leases([lease.uid], now=world.now + timedelta(seconds=16))

    assert later == {lease.uid: None}


async def test_a_process_without_a_live_hub_reads_the_newest_frame_from_valkey(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]
    await accept_samples(node.pk, node.name, await rows(lambda: samples_of([lease], seq=1)), at=world.now)
    await arrived()
    readings.clear()

    now = await asyncio.to_thread(selectors.latest_for_leases, [lease.uid], now=world.now)

    assert now[lease.uid] is not None
    assert now[lease.uid].util == 50.0


async def test_a_node_cannot_speak_for_devices_and_leases_of_another(world: World) -> None:
    mine = await rows(world.active)
    other = await rows(lambda: world.active("charlie", "l40s-quarter"))
    samples = await rows(lambda: samples_of([mine, other], seq=1))
    node = world.nodes["gpu-03"]

    await accept_samples(node.pk, node.name, samples, at=world.now)
    await arrived()

    frame = readings.frames["gpu-03"]
    assert {slot.lease for slot in frame.slots} == {other.uid}
    assert len(frame.devices) == 1
    assert mine.uid not in readings.leases


async def test_a_node_cannot_speak_under_another_name(world: World) -> None:
    lease = await rows(world.active)
    samples = await rows(lambda: samples_of([lease], seq=1))

    taken = await accept_samples(world.nodes["gpu-03"].pk, "gpu-01", samples, at=world.now)

    assert not taken
    assert intake()._frames == {}


async def test_a_slot_that_the_lease_does_not_hold_is_left_out(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]
    samples = await rows(lambda: samples_of([lease], seq=1))
    (slot,) = samples.slots
    strange = (
        replace(slot, start=slot.start + 3),
        SlotSample("lse-x", slot.device, 0, 1.0, 1, 1, ""),
        slot,
        slot,
    )

    await accept_samples(node.pk, node.name, replace(samples, slots=strange), at=world.now)
    await arrived()

    assert len(readings.leases[lease.uid].slots) == 1


async def test_frames_are_taken_in_order_of_boot_and_sequence(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]

    async def take(seq: int, boot: str, after_s: float) -> bool:
        samples = await rows(lambda: samples_of([lease], seq=seq, boot_id=boot))
        return await accept_samples(node.pk, node.name, samples, at=world.now + timedelta(seconds=after_s))

    taken = [
        await take(7, "b1", 0),
        await take(7, "b1", 1),
        await take(6, "b1", 1),
        await take(8, "b1", 1),
        await take(1, "b2", 2),
        await take(9, "b1", 3),
        await take(2, "b2", 3),
    ]

    assert taken == [True, False, False, True, True, False, True]
    assert intake().dropped == 3


async def test_unknown_figures_stay_unknown_all_the_way(world: World) -> None:
    lease = await rows(world.active)
    node = world.nodes["gpu-01"]
    samples = await rows(lambda: samples_of([lease], seq=1, util=None, memory_used_mib=None))

    await accept_samples(node.pk, node.name, samples, at=world.now)
    await arrived()

    stored = json.loads((await asyncio.to_thread(redis_client().hgetall, LATEST))["gpu-01"])
    assert stored[4][0][1:3] == [None, None]
    assert readings.leases[lease.uid].util is None


async def test_frames_of_many_nodes_leave_in_one_message(world: World) -> None:
    one, two = await rows(world.active), await rows(lambda: world.active("charlie", "l40s-quarter"))
    heard: list[str] = []
    hub().listen(FRAMES, lambda _channel, message: heard.append(message[0]))

    for node, lease in ((world.nodes["gpu-01"], one), (world.nodes["gpu-03"], two)):
        await accept_samples(node.pk, node.name, await rows(lambda lease=lease: samples_of([lease], seq=1)))
    waiting = len(intake()._frames)
    await arrived()

    assert waiting == 2
    assert sorted(heard) == ["gpu-01", "gpu-03"]


async def test_valkey_being_away_costs_frames_and_nothing_else(world: World, monkeypatch) -> None:
    from redis.exceptions import ConnectionError as Away

    lease = await rows(world.active)
    node = world.nodes["gpu-01"]

    async def away(*_args: object) -> None:
        raise Away("away")

    monkeypatch.setattr(ingest.Intake, "_put", away)
    monkeypatch.setattr(ingest, "BATCH_S", 0)
    taken = await accept_samples(
        node.pk, node.name, await rows(lambda: samples_of([lease], seq=1)), at=world.now
    )
    await asyncio.wait_for(intake()._sending, 5)

    assert taken
    assert not readings.frames
