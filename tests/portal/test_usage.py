"""What people have used: decayed, each second once, whoever settles and how often."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection

from portal.celery import app
from portal.leases import lifecycle
from portal.leases.states import LeaseState
from portal.policies.models import Policy
from portal.quotas.models import PersonUsage
from portal.settings import CELERY_BEAT_SCHEDULE
from scheduler import tasks
from scheduler.usage import settle
from tests.portal.builders import World, build_world

HALF_LIFE = timedelta(days=7)
GPU = 1000


def used(name: str = "bob") -> int:
    return PersonUsage.objects.get(user__username=name).used_milli_s


def test_a_running_lease_counts_from_its_grant_with_its_cost(world: World) -> None:
    lease = world.active("bob", "h100", at=world.now)

    settle(now=world.now + timedelta(seconds=100))

    assert used() == pytest.approx(lease.cost_milli * 100, rel=1e-3)
    assert PersonUsage.objects.get().team_id == lease.team_id


def test_an_ended_lease_counts_to_its_end_and_no_further(world: World) -> None:
    lease = world.active("bob", "h100", at=world.now)
    lifecycle.release_lease(lease=lease, actor=world.user("bob"), now=world.now + timedelta(seconds=40))

    settle(now=world.now + timedelta(seconds=100))

    assert used() == pytest.approx(GPU * 40, rel=1e-3)


def test_half_is_forgotten_in_a_half_life(world: World) -> None:
    world.ended("bob", "h100", seconds=1000, at=world.now - timedelta(seconds=1000))
    settle(now=world.now)

    settle(now=world.now + HALF_LIFE)

    assert used() == pytest.approx(GPU * 1000 / 2, rel=1e-2)


def test_the_half_life_is_the_active_policys(world: World) -> None:
    body = {"half_life_s": 3600}
    Policy.objects.update(is_active=False)
    Policy.objects.create(name="short", version=77, body=body, is_active=True, created_at=world.now)
    world.ended("bob", "h100", seconds=100, at=world.now - timedelta(seconds=100))
    settle(now=world.now)

    settle(now=world.now + timedelta(hours=2))

    assert used() == pytest.approx(GPU * 100 / 4, rel=2e-2)


def test_settling_often_and_settling_once_come_to_the_same(world: World) -> None:
    world.active("bob", "h100", at=world.now, duration_s=7200)
    world.active("charlie", "h100", at=world.now + timedelta(seconds=7), duration_s=7200)
    end = world.now + timedelta(seconds=3600)

    for seconds in (60, 60, 61, 500, 1800, 1801, 3000, 3600, 3600):
        settle(now=world.now + timedelta(seconds=seconds))
    often = (used("bob"), used("charlie"))
    PersonUsage.objects.all().delete()
    settle(now=end)

    assert often == pytest.approx((used("bob"), used("charlie")), abs=10)


def test_a_row_that_is_ahead_stays(world: World) -> None:
    world.active("bob", "h100", at=world.now)
    settle(now=world.now + timedelta(seconds=100))
    before = used()

    assert settle(now=world.now + timedelta(seconds=50)) == 0
    assert used() == before


def test_a_lease_past_its_end_that_is_not_swept_yet_counts_to_its_end(world: World) -> None:
    lease = world.active("bob", "h100", at=world.now, duration_s=600)

    settle(now=world.now + timedelta(seconds=900))

    assert used() == pytest.approx(lease.cost_milli * 600, rel=1e-2)


def test_nobody_who_only_waits_has_used_anything(world: World) -> None:
    world.submit("bob", "h100")

    assert settle(now=world.now) == 0
    assert not PersonUsage.objects.exists()


def test_a_booking_counts_from_its_start_not_before(world: World) -> None:
    world.submit("bob", "h100", starts_at=world.now + timedelta(hours=2))
    (lease,) = world.turn()
    assert lease.state == LeaseState.BOOKED

    settle(now=world.now + timedelta(hours=1))
    settle(now=world.now + timedelta(hours=2, minutes=1))

    assert not PersonUsage.objects.exists()


def test_a_use_of_years_ago_is_no_trouble(world: World) -> None:
    world.ended("bob", "h100", seconds=60, at=world.now - timedelta(days=90))
    settle(now=world.now - timedelta(days=89))

    settle(now=world.now + timedelta(days=20_000))

    assert used() == 0


@pytest.mark.django_db(transaction=True)
def test_two_that_settle_at_once_count_each_second_once() -> None:
    world = build_world()
    world.active("bob", "h100", at=world.now)
    at = world.now + timedelta(seconds=300)
    gate = threading.Barrier(4)

    def settle_too() -> None:
        gate.wait()
        settle(now=at)
        connection.close()

    threads = [threading.Thread(target=settle_too) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert used() == pytest.approx(GPU * 300, rel=1e-3)


def test_it_is_settled_every_minute(world: World) -> None:
    entry = CELERY_BEAT_SCHEDULE["settle_usage"]
    world.active("bob", "h100", at=world.now - timedelta(seconds=60))

    tasks.settle_usage()

    assert entry["task"] in app.tasks
    assert entry["schedule"] == 60.0
    assert used() > 0
