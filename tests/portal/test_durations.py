"""Ended requests teach how long the next ones run; without them nothing is predicted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from portal.common.live import redis_client
from portal.leases.forecasting import SNAPSHOT_KEY
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LeaseState, RequestState
from portal.policies.durations import duration_figures
from portal.policies.models import DurationModel
from portal.telemetry.models import MinuteRollup
from scheduler import durations, snapshot
from scheduler.engine.learning.bins import BINS
from scheduler.engine.learning.habits import EndedRequest
from tests.portal.builders import World, build_world

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
_answers: dict[tuple[EndedRequest, ...], Any] = {}


@pytest.fixture
def world(db: None) -> World:
    """The world at one fixed time, so that the same past is the same in every test."""
    redis_client().delete(SNAPSHOT_KEY)
    with connection.cursor() as cursor:
        # A test is one transaction, and a training on a busy machine takes longer than one may idle.
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    return build_world(NOON)


@pytest.fixture
def trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training takes seconds and answers the same to the same past: the first answer serves the others."""
    train = durations._trained

    def trained(past: Sequence[EndedRequest]) -> Any:
        key = tuple(past)
        if key not in _answers:
            _answers[key] = train(past)
        return _answers[key]

    monkeypatch.setattr(durations, "_trained", trained)


@pytest.fixture(autouse=True)
def no_model() -> None:
    durations._loaded.clear()


def ended(world: World, count: int) -> None:
    """So many requests of bob that asked for six hours and ran ten minutes and a bit, one an hour."""
    team, author, flavor = world.team("perception"), world.user("bob"), world.flavors["h100-1g-10gb"]
    first = world.now - timedelta(hours=count)
    requests = LeaseRequest.objects.bulk_create(
        LeaseRequest(
            team=team, author=author, flavor=flavor, duration_s=21_600, remaining_s=0, cost_milli=143,
            quote_micro=0, currency="EUR", state=RequestState.FULFILLED, name=f"run {at}",
            submitted_at=first + timedelta(hours=at), queued_at=first + timedelta(hours=at),
        )
        for at in range(count)
    )  # fmt: skip
    Lease.objects.bulk_create(
        Lease(
            request=one, team=team, user=author, flavor=flavor, node=world.nodes["gpu-01"],
            state=LeaseState.ENDED, share_milli=143, cost_milli=143, starts_at=one.submitted_at,
            not_after=one.submitted_at + timedelta(hours=6), activated_at=one.submitted_at,
            ended_at=one.submitted_at + timedelta(seconds=600 + at % 7), is_metered=True,
        )
        for at, one in enumerate(requests)
    )  # fmt: skip


def test_with_too_little_history_nothing_is_learned_and_nothing_predicted(world: World) -> None:
    ended(world, durations.LEAST - 1)
    asked = world.submit("bob")

    assert durations.learn(now=world.now) is None
    assert durations.predict() == 0

    asked.refresh_from_db()
    assert (asked.predicted_s, asked.predicted_memory_mib) == (None, None)
    assert duration_figures() is None


def test_what_was_learned_is_written_on_who_waits_and_reaches_the_engine(
    trained_once: None, world: World
) -> None:
    ended(world, 260)
    before = world.submit("bob", duration_s=21_600)

    made = durations.learn(now=world.now)
    after = world.submit("bob", duration_s=21_600)
    written = durations.predict()

    assert made is not None
    assert written == 1
    for request in (before, after):
        request.refresh_from_db()
        assert 400 < request.predicted_s < 900
        assert request.predicted_s <= request.predicted_most_s <= 21_600
        assert request.predicted_memory_mib is None
    seen = snapshot.take(now=world.now)
    assert {claim.predicted_s for claim in seen.queue} == {before.predicted_s}
    assert seen.learned.version == made.version == 1
    team = world.team("perception").pk
    assert [row[:2] for row in seen.learned.lengths] == [(team, 0), (team, -1), (0, -1)]
    assert {len(chances) for _, _, chances in seen.learned.lengths} == {BINS}
    assert sum(seen.learned.errors) == 0  # nobody was predicted anything before


def test_requests_that_still_run_count_as_longer_than_so_far(world: World) -> None:
    ended(world, 260)
    before = durations.lengths(durations.fetch(durations.PAST, [durations.MOST]), unfinished(world))
    running(world, 60)

    after = durations.lengths(durations.fetch(durations.PAST, [durations.MOST]), unfinished(world))

    assert [row[2] for row in unfinished(world)] == [18_000.0] * 60
    assert over_an_hour(after) > 3 * over_an_hour(before)


def running(world: World, count: int) -> None:
    """So many requests of bob that have run for five hours."""
    team, author, flavor = world.team("perception"), world.user("bob"), world.flavors["h100-1g-10gb"]
    began = world.now - timedelta(hours=5)
    requests = LeaseRequest.objects.bulk_create(
        LeaseRequest(
            team=team, author=author, flavor=flavor, duration_s=21_600, remaining_s=21_600, cost_milli=143,
            quote_micro=0, currency="EUR", state=RequestState.GRANTED, submitted_at=began, queued_at=began,
        )
        for _ in range(count)
    )  # fmt: skip
    Lease.objects.bulk_create(
        Lease(
            request=one, team=team, user=author, flavor=flavor, node=world.nodes["gpu-01"],
            state=LeaseState.ACTIVE, share_milli=143, cost_milli=143, starts_at=began,
            not_after=began + timedelta(hours=6), activated_at=began,
        )
        for one in requests
    )  # fmt: skip


def unfinished(world: World) -> list[Sequence[Any]]:
    return list(durations.fetch(durations.UNFINISHED, [world.now, world.now]))


def over_an_hour(found: dict[str, Any]) -> float:
    return sum(found["lengths"][0][2][24:])


def test_figures_say_how_much_better_it_is_than_the_time_asked(trained_once: None, world: World) -> None:
    ended(world, 260)

    durations.learn(now=world.now)

    found = duration_figures()
    assert found is not None
    assert found.predicted is not None
    assert found.asked is not None
    assert found.judged == 52
    assert found.predicted[0] < 1.2 < 30 < found.asked[0]


def test_nothing_is_learned_again_before_enough_has_ended(
    trained_once: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(world, 260)
    durations.learn(now=world.now)
    answer, taught = next(iter(_answers.values())), list[int]()

    def trained(past: Sequence[EndedRequest]) -> Any:
        taught.append(len(past))
        return answer

    monkeypatch.setattr(durations, "_trained", trained)

    assert durations.learn(now=world.now) is None
    ended(world, durations.NEW)
    again = durations.learn(now=world.now)

    assert again is not None
    assert (again.version, taught) == (2, [260 + durations.NEW])


@pytest.mark.deep
def test_memory_is_predicted_where_telemetry_has_it(world: World) -> None:
    ended(world, 260)
    MinuteRollup.objects.bulk_create(
        MinuteRollup(lease_id=lease.pk, minute=lease.starts_at, samples=60, memory_max_mib=7000)
        for lease in Lease.objects.all()
    )
    asked = world.submit("bob")

    durations.learn(now=world.now)

    asked.refresh_from_db()
    assert asked.predicted_memory_mib == 7000


def test_a_model_that_cannot_be_read_predicts_nothing(world: World) -> None:
    DurationModel.objects.create(version=1, requests=1, made_at=world.now, trees={"habits": 3})
    world.submit("bob")

    assert durations.predict() == 0


def test_a_training_that_fails_leaves_everything_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(world, 260)
    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert durations.learn(now=world.now) is None
    assert not DurationModel.objects.exists()


@pytest.mark.deep
def test_neither_the_web_process_nor_a_worker_loads_the_training_library() -> None:
    code = (
        "import os, sys; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'portal.settings');"
        "import portal.asgi, scheduler.tasks; sys.exit('sklearn' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
