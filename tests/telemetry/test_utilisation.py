from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from portal.common.sql import execute
from portal.fleet.models import Device, HealthEvent, MaintenanceWindow
from portal.telemetry.hours import roll_up_hours
from portal.telemetry.models import HourRollup, MinuteRollup
from portal.telemetry.utilisation import fleet_hours
from tests.portal.builders import World

HOUR = timedelta(hours=1)


def full_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


@pytest.mark.django_db
def test_an_hour_is_the_mean_of_its_known_minutes_and_grows_with_them(world: World) -> None:
    hour = full_hour(world.now)

    def minute(n: int, util: float | None) -> None:
        MinuteRollup.objects.create(
            lease_id=7, minute=hour + timedelta(minutes=n), samples=60, util_mean=util
        )

    for n, util in enumerate((10.0, 30.0, None)):
        minute(n, util)
    roll_up_hours(now=hour + timedelta(minutes=4))
    first = HourRollup.objects.get()
    minute(5, 80.0)
    roll_up_hours(now=hour + timedelta(minutes=6))
    roll_up_hours(now=hour + HOUR + timedelta(minutes=20))

    again = HourRollup.objects.get()
    assert (first.lease_id, first.hour, first.minutes, first.util_mean) == (7, hour, 2, 20.0)
    assert (again.minutes, again.util_mean) == (3, 40.0)


@pytest.mark.django_db
def test_hours_tell_used_idle_unmeasured_unavailable_and_what_idling_costs(world: World) -> None:
    begin = full_hour(world.now) - 3 * HOUR
    busy = world.ended("bob", "h100", count=2, at=begin, seconds=3600)
    world.ended("charlie", "h100", at=begin, seconds=1800)
    HourRollup.objects.create(lease_id=busy.pk, hour=begin, minutes=60, util_mean=75.0)
    device = Device.objects.filter(node__name="gpu-03").first()
    assert device is not None
    HealthEvent.objects.create(
        node=device.node, device=device, code="x", severity="critical", detail="", at=begin + HOUR / 2
    )
    window = MaintenanceWindow.objects.create(
        starts_at=begin + HOUR * 3 / 4, ends_at=begin + 2 * HOUR, reason="x", created_at=begin
    )
    window.nodes.add(device.node)

    first, second, *_rest = fleet_hours(since=begin, hours=3, now=begin + 3 * HOUR)

    # An H100 costs 3.60 an hour: a quarter of two of them idled.
    assert (first.capacity, first.allocated, first.used, first.measured) == (12_000, 2500, 1500, 2000)
    assert (first.idle, first.unmeasured, first.idle_micro) == (500, 500, 1_800_000)
    # One device was ill for half an hour, and in maintenance with three others in the last quarter of it.
    assert (first.unavailable, first.free) == (1250, 8250)
    assert (second.used, second.unavailable, second.idle_micro) == (None, 4000, None)


@pytest.mark.django_db
def test_before_the_fleet_was_there_and_after_now_nothing_is_known(world: World) -> None:
    execute("UPDATE fleet_node SET created_at = %s", [full_hour(world.now)])
    now = full_hour(world.now) + HOUR / 2

    before, current, after = fleet_hours(since=full_hour(world.now) - HOUR, hours=3, now=now)

    assert (before.is_known, current.is_known, after.is_known) == (False, True, False)
