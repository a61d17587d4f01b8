"""How often one person may call: counted over processes, never in the way when Redis is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.utils import timezone
from redis.exceptions import ConnectionError as RedisGone

from portal.common import throttle
from portal.common.live import redis_client
from portal.common.throttle import LEAVE_ALONE_S, PARTS, CallTally
from tests.api.conftest import Caller
from tests.portal.builders import World

Calls = Callable[..., Caller]
AT = datetime(2026, 11, 21, 10, 0, 20, tzinfo=UTC)


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counted yet."""
    monkeypatch.setattr(throttle, "tally", CallTally())
    if "world" in request.fixturenames or "valkey_url" in request.fixturenames:
        for key in redis_client().scan_iter("berth:calls:*"):
            redis_client().delete(key)


@pytest.fixture
def at_twenty_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls count as made 20 seconds into a minute."""
    monkeypatch.setattr(throttle, "timezone", type("Clock", (), {"now": staticmethod(lambda: AT)}))


class Gone:
    """A Redis that is away; ``asked`` counts who tried."""

    def __init__(self) -> None:
        self.asked = 0

    def pipeline(self, **_options: Any) -> Any:
        self.asked += 1
        raise RedisGone


@pytest.mark.django_db
@pytest.mark.usefixtures("at_twenty_past")
def test_the_call_beyond_the_limit_says_how_long_to_wait(world: World, calls: Calls, settings: Any) -> None:
    settings.API_READS_PER_MINUTE = 2
    bob, again = calls("bob"), calls("bob")

    answers = [caller.get("me/") for caller in (bob, again, bob)]

    assert [a.status_code for a in answers] == [200, 200, 429]
    refusal = answers[-1]
    assert refusal.headers["Content-Type"] == "application/problem+json"
    assert refusal.headers["Retry-After"] == "40"
    assert refusal.json()["code"] == "too_many_calls"
    assert refusal.json()["detail"] == "You made more than 2 calls in this minute."
    assert "Retry-After" in refusal.json()["next"]
    assert refusal.json()["facts"] == {"limit": 2, "kind": "reads"}


@pytest.mark.django_db
@pytest.mark.usefixtures("at_twenty_past")
def test_a_refused_change_changes_nothing_and_looking_goes_on(
    world: World, calls: Calls, settings: Any
) -> None:
    settings.API_CHANGES_PER_MINUTE = 1
    bob, alice = calls("bob"), calls("alice")
    body = {"flavor": "h100-1g-10gb", "duration_s": 3600}
    made = [bob.post("requests/", body).status_code for _ in range(2)]

    assert made == [201, 429]
    assert len(bob.get("requests/").json()["results"]) == 1
    assert alice.post("requests/", body).status_code != 429


@pytest.mark.django_db
@pytest.mark.usefixtures("at_twenty_past")
def test_zero_is_no_limit(world: World, calls: Calls, settings: Any) -> None:
    settings.API_READS_PER_MINUTE = 0

    assert [calls("bob").get("me/").status_code for _ in range(3)] == [200] * 3


@pytest.mark.django_db
@pytest.mark.usefixtures("at_twenty_past")
def test_calls_are_answered_while_redis_is_away(
    world: World, calls: Calls, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.API_READS_PER_MINUTE = 10
    gone = Gone()
    monkeypatch.setattr(throttle, "redis_client", lambda: gone)

    answers = [calls("bob").get("me/").status_code for _ in range(5)]

    assert answers == [200] * 5
    assert gone.asked == 1


def test_processes_know_of_each_others_calls(valkey_url: str) -> None:
    one, other = CallTally(), CallTally()
    now = timezone.now().timestamp()

    told = [one.add("7:reads", limit=100, now=now) for _ in range(6)]
    seen = [other.add("7:reads", limit=100, now=now) for _ in range(2)]

    assert told == [1, 2, 3, 4, 5, 6]
    assert seen == [1, 8]
    assert 0 < redis_client().ttl(f"berth:calls:7:reads:{int(now // 60)}") <= 120


def test_a_new_minute_begins_at_nothing(valkey_url: str) -> None:
    tally = CallTally()

    counts = [tally.add("7:reads", limit=1, now=at) for at in (59.0, 59.5, 60.0)]

    assert counts == [1, 2, 1]


def test_most_calls_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Gone()
    monkeypatch.setattr(throttle, "redis_client", lambda: gone)
    tally = CallTally()

    for _ in range(30_000 // PARTS - 1):
        tally.add("7:reads", limit=30_000, now=0.0)
    assert gone.asked == 0
    tally.add("7:reads", limit=30_000, now=0.0)

    assert gone.asked == 1


def test_a_store_that_was_away_is_asked_again_and_nothing_here_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = Gone()
    monkeypatch.setattr(throttle, "redis_client", lambda: gone)
    tally = CallTally()

    counts = [tally.add("7:reads", limit=1, now=at) for at in (0.0, 1.0, LEAVE_ALONE_S + 1.0)]

    assert counts == [1, 2, 3]
    assert gone.asked == 2
