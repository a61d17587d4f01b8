"""The database refuses a double-leased slice, whatever the code does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from psycopg.types.range import Int8Range, TimestamptzRange

from portal.fleet.models import Device
from portal.leases.models import Placement
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db


def place(world: World, device: Device, start: int, size: int, **more: object) -> Placement:
    fields = {
        "lease": None,
        "device": device,
        "team": world.team("vision"),
        "mode": "mig",
        "start": start,
        "size": size,
        "slots": Int8Range(start, start + size),
        "period": TimestamptzRange(world.now, world.now + timedelta(hours=1)),
        "share_milli": 125,
        "memory_mib": 1,
        **more,
    }
    return Placement.objects.create(**fields)


def test_a_slice_inside_a_held_whole_board_is_refused(world: World) -> None:
    device = Device.objects.first()
    place(world, device, 0, 8)

    with pytest.raises(IntegrityError, match="placements_never_overlap"), transaction.atomic():
        place(world, device, 3, 1)


def test_neighbouring_slices_and_later_times_are_welcome(world: World) -> None:
    device = Device.objects.first()
    place(world, device, 0, 4)

    place(world, device, 4, 4)
    later = TimestamptzRange(world.now + timedelta(hours=1), world.now + timedelta(hours=2))
    place(world, device, 0, 8, period=later)

    assert Placement.objects.count() == 3


def test_a_slice_that_is_not_live_any_more_holds_nothing(world: World) -> None:
    device = Device.objects.first()
    place(world, device, 0, 8, is_live=False)

    place(world, device, 0, 8)

    assert Placement.objects.filter(is_live=True).count() == 1


@pytest.mark.django_db(transaction=True)
def test_eight_sessions_racing_for_the_same_slices_leave_no_overlap() -> None:
    world = build_world()
    devices = list(Device.objects.filter(node__name="gpu-01"))
    barrier = Barrier(8)

    def racer(number: int) -> int:
        won = 0
        barrier.wait()
        for device in devices:
            for start in range(8):
                size = 1 + (start + number) % 3
                try:
                    with transaction.atomic():
                        place(world, device, start, min(size, 8 - start))
                    won += 1
                except (IntegrityError, OperationalError):
                    pass
        connections.close_all()
        return won

    with ThreadPoolExecutor(8) as pool:
        won = sum(pool.map(racer, range(8)))

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM leases_placement a JOIN leases_placement b"
            " ON a.id < b.id AND a.device_id = b.device_id AND a.slots && b.slots AND a.period && b.period"
            " WHERE a.is_live AND b.is_live"
        )
        overlaps = cursor.fetchone()[0]
    assert overlaps == 0
    assert won == Placement.objects.count() > 0
