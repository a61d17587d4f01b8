from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from portal.common.live import redis_client
from portal.telemetry.ingest import MINUTES, accept_samples, intake
from portal.telemetry.minutes import Minute, MinuteSums, write
from portal.telemetry.models import MinuteRollup
from portal.telemetry.rollups import roll_up_minutes
from tests.portal.builders import World
from tests.telemetry.conftest import rows, samples_of


def waiting_minute(world: World, *, samples: int = 60, lease_id: int = 7) -> str:
    begins = int(world.now.timestamp()) // 60 * 60 - 60
    sums = MinuteSums(samples, samples, 50.0 * samples, 90.0, 4000)
    return write(Minute("gpu-01", begins, {1: sums}, {lease_id: sums}))


@pytest.mark.django_db(transaction=True)
async def test_seconds_become_a_minute_of_the_lease_and_of_its_device(world: World, live: None) -> None:
    lease = await rows(world.active)
    node, begin = world.nodes["gpu-01"], world.now.replace(second=0)
    for second, util in enumerate((20.0, None, 40.0)):
        samples = await rows(
            lambda s=second, u=util: samples_of([lease], seq=s, util=u, energy_mj=1000 + 300 * s)
        )
        await accept_samples(node.pk, node.name, samples, at=begin + timedelta(seconds=second))

    intake().flush(now=begin.timestamp() + 66)
    await asyncio.wait_for(intake()._sending, 5)
    stored = await rows(lambda: roll_up_minutes(now=begin + timedelta(seconds=70)))

    minute = await rows(lambda: MinuteRollup.objects.get(lease_id=lease.pk))
    device = await rows(lambda: MinuteRollup.objects.get(device_id=lease.placements.get().device_id))
    assert stored == 1
    assert (minute.minute, minute.samples, minute.util_mean, minute.util_max) == (begin, 3, 30.0, 40.0)
    assert (minute.energy_mj, device.energy_mj, device.samples) == (None, 600, 3)


@pytest.mark.django_db(transaction=True)
def test_storing_the_same_minute_twice_gives_one_row_and_the_fuller_part_stays(world: World) -> None:
    redis_client().delete(MINUTES)
    parts = [waiting_minute(world, samples=n) for n in (20, 40, 40, 15)]

    for part in parts:
        redis_client().rpush(MINUTES, part)
        roll_up_minutes(now=world.now)

    assert MinuteRollup.objects.get(lease_id=7).samples == 40
    assert MinuteRollup.objects.count() == 2
    assert redis_client().llen(MINUTES) == 0


@pytest.mark.django_db(transaction=True)
def test_parts_of_a_minute_that_are_stored_in_one_go_give_one_row_of_the_fullest(world: World) -> None:
    redis_client().delete(MINUTES)
    parts = [waiting_minute(world, samples=n, lease_id=lease) for lease in (9, 7) for n in (20, 40, 40, 15)]
    redis_client().rpush(MINUTES, *parts)

    stored = roll_up_minutes(now=world.now)

    assert stored == len(parts)
    rows = MinuteRollup.objects.order_by("lease_id").values_list(
        "device_id", "lease_id", "samples", "util_mean"
    )
    assert list(rows) == [(None, 7, 40, 50.0), (None, 9, 40, 50.0), (1, None, 40, 50.0)]


@pytest.mark.django_db(transaction=True)
def test_an_entry_that_makes_no_sense_does_not_stop_the_others(world: World) -> None:
    redis_client().delete(MINUTES)
    too_large = waiting_minute(world, lease_id=2**70)
    redis_client().rpush(MINUTES, "junk", '{"node": 1}', too_large, "[]", waiting_minute(world))

    stored = roll_up_minutes(now=world.now)

    assert stored == 1
    assert redis_client().llen(MINUTES) == 0
    assert MinuteRollup.objects.get(lease_id=7).samples == 60


@pytest.mark.django_db(transaction=True)
def test_a_minute_that_would_not_be_kept_any_more_is_not_stored(world: World) -> None:
    redis_client().delete(MINUTES)
    redis_client().rpush(MINUTES, waiting_minute(world))

    stored = roll_up_minutes(now=world.now + timedelta(days=16))

    assert (stored, MinuteRollup.objects.count()) == (0, 0)
