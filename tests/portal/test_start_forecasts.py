"""The first forecast of every wait is kept, what came is noted, and the next ones learn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from portal.common.live import redis_client
from portal.fleet.models import Node
from portal.leases import forecast_records, forecasting, lifecycle, published_snapshot
from portal.leases.models import LeaseRequest, StartForecast, StartPromise
from portal.leases.published_snapshot import (
    CALIBRATION_KEY,
    SNAPSHOT_KEY,
    picture,
    publish_calibration,
    published_calibration,
)
from portal.leases.requests import withdraw_request
from portal.policies.services import save_policy
from scheduler import forecasts, snapshot
from scheduler.engine import snapshot_to_json
from scheduler.engine.calibration import Calibration, Sample, calibrated
from tests.portal.builders import World
from tests.portal.test_preempting import told

pytestmark = pytest.mark.django_db
HOUR = 3600


@pytest.fixture(autouse=True)
def no_picture() -> Iterator[None]:
    redis_client().delete(SNAPSHOT_KEY, CALIBRATION_KEY)
    published_snapshot._last.clear()
    yield
    published_snapshot._last.clear()
    redis_client().delete(SNAPSHOT_KEY, CALIBRATION_KEY)


def publish(world: World, *, hours: float = 0) -> None:
    now = world.now + timedelta(hours=hours)
    redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=now)))


def waiting(world: World) -> LeaseRequest:
    """A request that waits two hours for the last whole board, by the book."""
    world.active("charlie", "h100", count=8, duration_s=2 * HOUR)
    return world.submit("bob", "h100", duration_s=HOUR)


def test_the_first_forecast_of_a_wait_is_kept_and_later_ones_are_not(world: World) -> None:
    asked = waiting(world)
    publish(world)

    assert forecasts.note(now=world.now) == 1
    publish(world, hours=1)
    assert forecasts.note(now=world.now + timedelta(hours=1)) == 0

    kept = StartForecast.objects.get(request=asked)
    assert (kept.made_at, kept.raw_s) == (world.now, 2 * HOUR)
    assert kept.made_at < kept.p50_at <= kept.p90_at


def test_the_first_forecast_is_a_promise_where_the_policy_says_so(world: World) -> None:
    asked = waiting(world)
    publish(world)
    forecasts.note(now=world.now)
    assert not StartPromise.objects.exists()
    save_policy(
        actor=world.user("operator"), rights=world.rights("operator"), name="kept", body={"promise_p90": True},
        note="", based_on=0, now=world.now,
    )  # fmt: skip
    later = world.submit("bob", "h100", duration_s=HOUR, at=world.now)
    publish(world)

    assert forecasts.note(now=world.now) == 1
    forecasts.note(now=world.now)

    kept, promise = StartForecast.objects.get(request=later), StartPromise.objects.get()
    assert (promise.request_id, promise.promised_at, promise.outcome) == (later.pk, kept.p90_at, "open")
    assert promise.policy_version == 1
    assert asked.promises.count() == 0, "what was told before was no promise"


def test_who_starts_at_once_gets_no_forecast(world: World) -> None:
    world.submit("bob", "h100")
    publish(world)

    assert forecasts.note(now=world.now) == 0


def test_who_has_a_place_made_for_it_is_told_one_certain_start(world: World) -> None:
    asked, lease = told(world)
    publish(world)

    start = forecasting.estimates([asked])[asked.pk]

    assert start is not None
    assert (start.likely_at, start.by) == (lease.preempt_at, lease.preempt_at)
    assert forecasts.note(now=world.now) == 0


def test_the_start_that_came_is_noted(world: World) -> None:
    asked = waiting(world)
    publish(world)
    forecasts.note(now=world.now)
    lease = world.teams["language"].leases.get()
    later = world.now + timedelta(hours=3)
    Node.objects.update(last_seen_at=later)
    lifecycle.release_lease(lease=lease, actor=world.user("charlie"), now=later)
    world.gone(lease, at=later)
    world.turn(later)

    forecasts.note(now=later)

    assert StartForecast.objects.get(request=asked).started_at == later
    (one,) = forecast_records.samples(now=later)
    assert (one.raw_s, one.wait_s, one.is_over) == (2 * HOUR, 3 * HOUR, True)
    assert one.p50_s == 2 * HOUR
    assert one.p90_s > 2 * HOUR


def test_who_gave_up_waited_at_least_so_long(world: World) -> None:
    asked = waiting(world)
    publish(world)
    forecasts.note(now=world.now)
    later = world.now + timedelta(hours=1)
    withdraw_request(request=asked, actor=world.user("bob"), rights=world.rights("bob"), now=later)

    (one,) = forecast_records.samples(now=world.now + timedelta(hours=9))

    assert (one.wait_s, one.is_over) == (HOUR, False)


def test_old_forecasts_are_forgotten(world: World) -> None:
    waiting(world)
    publish(world)
    forecasts.note(now=world.now)

    forecasts.calibrate(now=world.now + forecast_records.KEEP + timedelta(days=1))

    assert not StartForecast.objects.exists()
    assert published_calibration() == Calibration()


def test_what_was_learned_is_what_the_next_person_sees(world: World) -> None:
    asked = waiting(world)
    publish(world)
    found = calibrated([Sample(raw, raw / 2, made_s=raw * 1e3) for raw in range(1000, 20_000, 50)])
    publish_calibration(found)

    start = forecasting.estimates([asked])[asked.pk]

    assert published_calibration() == found
    assert start is not None
    assert (start.likely_at - world.now).total_seconds() == pytest.approx(HOUR, rel=0.1)
    assert start.by - start.likely_at < timedelta(minutes=15)


def test_a_prediction_brings_the_forecast_forward(world: World) -> None:
    asked = waiting(world)
    LeaseRequest.objects.exclude(pk=asked.pk).update(predicted_s=HOUR)
    publish(world)

    start = forecasting.estimates([asked])[asked.pk]

    assert start is not None
    assert timedelta(minutes=30) < start.likely_at - world.now < timedelta(minutes=90)


def test_a_picture_is_decoded_once(world: World) -> None:
    publish(world)
    first = picture()

    assert picture() is first
    publish(world, hours=1)
    assert picture() is not first


def test_where_reading_takes_long_the_picture_at_hand_answers_and_is_renewed_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(world)
    first = picture()
    assert first is not None
    first.cost_s = published_snapshot.CHEAP_S
    monkeypatch.setattr(published_snapshot, "LARGE", 0)
    publish(world, hours=1)
    assert picture() is first

    first.made -= published_snapshot.PATIENCE * first.cost_s
    monkeypatch.setattr(published_snapshot, "Thread", AtOnce)
    assert picture() is first
    monkeypatch.setattr(published_snapshot, "LARGE", 10**9)
    second = picture()

    assert second is not None
    assert second.book.taken_at == world.now + timedelta(hours=1)


class AtOnce:
    """A thread that has already run when it is started."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        self.run = lambda: target(*args)

    def start(self) -> None:
        self.run()


def test_a_broken_picture_or_calibration_is_none(world: World) -> None:
    redis_client().set(SNAPSHOT_KEY, "{}")
    redis_client().set(CALIBRATION_KEY, '{"p50": 3}')

    assert picture() is None
    assert published_calibration() == Calibration()


def test_quality_counts_starts_and_what_has_missed_already(world: World) -> None:
    asked = waiting(world)
    minute = timedelta(minutes=1)
    kept = {"request": asked, "p50_at": world.now + 2 * minute, "p90_at": world.now + 5 * minute, "raw_s": 90}
    for at, started in enumerate((1, 3, 9, None)):
        StartForecast.objects.create(
            queued_at=world.now - at * minute,
            made_at=world.now,
            started_at=None if started is None else world.now + started * minute,
            **kept,
        )

    found = forecast_records.quality(now=world.now + timedelta(hours=1)).overall
    early = forecast_records.quality(now=world.now + minute).overall

    assert replace(found, label=None) == forecast_records.ForecastScore(None, 4, 250, 500, 180)
    assert early.samples == 3


def test_without_forecasts_quality_is_unknown_and_not_zero(world: World) -> None:
    assert forecast_records.quality(now=world.now).overall == forecast_records.ForecastScore(
        None, 0, None, None, None
    )
