"""Series of bookings: the same local hour, one clash does not stop the others, and who may."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import Node
from portal.leases import reservations
from portal.leases.models import Lease, LeaseRequest, Reservation
from portal.leases.reservations import (
    SeriesSpec,
    cancel_reservation,
    create_reservation,
    make_occurrences,
    occurrences,
    series_named,
)
from portal.leases.states import Repeat
from portal.teams.models import Membership
from tests.portal.builders import World

BERLIN = ZoneInfo("Europe/Berlin")


def local(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=BERLIN)  # type: ignore[misc,arg-type]


def hours(found: list[datetime]) -> list[str]:
    return [f"{at.astimezone(BERLIN):%m-%d %H:%M}" for at in found]


def test_the_local_hour_stays_when_clocks_change_in_autumn_and_in_spring() -> None:
    autumn = list(
        occurrences(
            local(2026, 10, 20, 17),
            "weekly",
            "Europe/Berlin",
            after=local(2026, 10, 1),
            until=local(2026, 11, 4),
        )
    )
    spring = list(
        occurrences(
            local(2027, 3, 27, 17),
            "daily",
            "Europe/Berlin",
            after=local(2027, 3, 1),
            until=local(2027, 3, 29, 17),
        )
    )

    assert hours(autumn) == ["10-20 17:00", "10-27 17:00", "11-03 17:00"]
    assert [b - a for a, b in pairwise(autumn)] == [
        timedelta(days=7, hours=1),
        timedelta(days=7),
    ]
    assert hours(spring) == ["03-27 17:00", "03-28 17:00", "03-29 17:00"]


def test_an_hour_that_clocks_skip_moves_on_by_what_they_skip() -> None:
    found = list(
        occurrences(
            local(2027, 3, 27, 2, 30),
            "daily",
            "Europe/Berlin",
            after=local(2027, 3, 27),
            until=local(2027, 3, 29, 12),
        )
    )

    assert hours(found) == ["03-27 02:30", "03-28 03:30", "03-29 02:30"]


def test_weekdays_leave_out_the_weekend_of_the_zone_and_not_of_utc() -> None:
    # Monday 00:30 in Berlin is still Sunday in UTC.
    found = list(
        occurrences(
            local(2026, 11, 23, 0, 30),
            "weekdays",
            "Europe/Berlin",
            after=local(2026, 11, 22),
            until=local(2026, 12, 1),
        )
    )

    days = ("11-23", "11-24", "11-25", "11-26", "11-27", "11-30")
    assert hours(found) == [f"{day} 00:30" for day in days]


@given(
    zone=st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Shanghai"]
    ),
    repeat=st.sampled_from(Repeat.values),
    start=st.integers(0, 730 * 24 * 4).map(
        lambda n: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=15 * n)
    ),
    days=st.integers(0, 400),
)
def test_reading_a_series_in_pieces_gives_the_same_times_as_in_one_piece(
    zone: str, repeat: str, start: datetime, days: int
) -> None:
    end = start + timedelta(days=430)
    middle = start + timedelta(days=days)
    before = start - timedelta(seconds=1)

    whole = list(occurrences(start, repeat, zone, after=before, until=end))
    pieces = [
        *occurrences(start, repeat, zone, after=before, until=middle),
        *occurrences(start, repeat, zone, after=middle, until=end),
    ]

    assert whole == pieces == sorted(set(whole))


def reserve(world: World, name: str = "bob", **more: object) -> Reservation:
    values = {
        "flavor": "h100",
        "duration_s": 3600,
        "starts_at": world.now + timedelta(hours=2),
        "repeat": "daily",
    }
    team = {"bob": "perception", "alice": "vision", "charlie": "language"}[name]
    return create_reservation(
        team=world.team(team),
        actor=world.user(name),
        rights=world.rights(name),
        spec=SeriesSpec(**{**values, **more}),  # type: ignore[arg-type]
        now=world.now,
    )


@pytest.mark.django_db
def test_a_series_asks_for_the_next_four_weeks_and_never_twice(world: World) -> None:
    series = reserve(world)

    assert LeaseRequest.objects.filter(series=series).count() == 28
    assert make_occurrences(now=world.now) == 0
    assert make_occurrences(now=world.now + timedelta(days=1)) == 1


@pytest.mark.django_db
def test_the_turn_books_every_time_and_a_clash_is_told_and_stops_no_other(world: World) -> None:
    world.nodes["gpu-01"].devices.filter(index__gt=0).update(health="quarantined")
    taken = world.submit("charlie", "h100", starts_at=world.now + timedelta(days=1, hours=2))
    world.turn()
    series = reserve(world, until=world.now + timedelta(days=3))

    world.turn()

    states = list(
        LeaseRequest.objects.filter(series=series).order_by("starts_at").values_list("state", flat=True)
    )
    assert states == ["granted", "impossible", "granted"]
    assert Lease.objects.get(request=taken).state == "booked"
    news = world.user("bob").notifications.get(kind="booking.taken")
    assert news.facts["starts_at"] == (world.now + timedelta(days=1, hours=2)).isoformat()
    assert len(news.facts["nearest"]) >= 1


@pytest.mark.django_db
@pytest.mark.parametrize("silent_s", [None, 60, 3600])
def test_a_series_waits_for_silent_nodes_and_is_booked_once_they_are_heard(
    world: World, silent_s: int | None
) -> None:
    heard = None if silent_s is None else world.now - timedelta(seconds=silent_s)
    Node.objects.update(last_seen_at=heard)
    series = reserve(world, until=world.now + timedelta(days=3))

    world.turn()
    asked = LeaseRequest.objects.filter(series=series)
    waiting = {(one.state, one.reasons[0]["code"]) for one in asked}
    told = world.user("bob").notifications.count()
    Node.objects.update(last_seen_at=world.now)
    world.turn()

    assert waiting == {("queued", "nodes_silent")}
    assert told == 0
    assert set(asked.values_list("state", flat=True)) == {"granted"}


@pytest.mark.django_db
def test_cancelling_gives_up_what_is_booked_and_leaves_what_runs(world: World) -> None:
    series = reserve(world, until=world.now + timedelta(days=2))
    world.turn()

    count = cancel_reservation(
        series=series, actor=world.user("bob"), rights=world.rights("bob"), now=world.now
    )

    assert count == 2
    assert set(LeaseRequest.objects.filter(series=series).values_list("state", flat=True)) == {"withdrawn"}
    assert make_occurrences(now=world.now + timedelta(days=1)) == 0


@pytest.mark.django_db
def test_charlie_neither_sees_nor_cancels_nor_reserves_for_another_team(world: World) -> None:
    series = reserve(world)

    with pytest.raises(NotFound):
        series_named(world.rights("charlie"), series.uid)
    with pytest.raises(NotFound):
        cancel_reservation(
            series=series, actor=world.user("charlie"), rights=world.rights("charlie"), now=world.now
        )
    with pytest.raises(Forbidden):
        cancel_reservation(
            series=series, actor=world.user("finance"), rights=world.rights("finance"), now=world.now
        )


@pytest.mark.django_db
def test_a_series_of_somebody_who_left_the_team_ends(world: World) -> None:
    series = reserve(world)
    Membership.objects.filter(user=world.user("bob")).delete()

    make_occurrences(now=world.now + timedelta(days=2))

    series.refresh_from_db()
    assert series.cancelled_at is not None
    assert world.user("bob").notifications.filter(kind="reservation.ended").exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"repeat": "yearly"}, "repeat"),
        ({"repeat": "daily", "duration_s": 90_000}, "duration_s"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"starts_at": datetime(2020, 1, 1, tzinfo=UTC)}, "starts_at"),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "until"),
        ({"flavor": "nothing"}, "flavor"),
        ({"count": 0}, "count"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field_named(
    world: World, more: dict[str, object], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        reserve(world, **more)

    assert field in refused.value.fields
    assert not Reservation.objects.exists()


@pytest.mark.django_db
def test_a_series_that_fails_unexpectedly_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = reserve(world), reserve(world, name="charlie")
    tomorrow = world.now + timedelta(days=1)

    def failing(series: Reservation, at: datetime, now: datetime) -> int:
        if series == broken:
            raise ZeroDivisionError("a rule that nobody thought of")
        return ask(series, at, now)

    ask = reservations._ask
    monkeypatch.setattr(reservations, "_ask", failing)

    assert make_occurrences(now=tomorrow) == 1
    assert LeaseRequest.objects.filter(series=sound).count() == 29
    assert LeaseRequest.objects.filter(series=broken).count() == 28
    assert f"reservation {broken.pk} could not be carried on" in caplog.text

    monkeypatch.setattr(reservations, "_ask", ask)
    assert make_occurrences(now=tomorrow) == 1  # the one that failed is tried again


@pytest.mark.django_db
def test_a_full_queue_is_asked_again_from_there_by_the_next_sweep(world: World, settings: Any) -> None:
    settings.MAX_WAITING_PER_TEAM = 3
    series = reserve(world)
    asked = LeaseRequest.objects.filter(series=series)
    assert asked.count() == 3
    world.turn()  # booked, so that three more may wait

    assert make_occurrences(now=world.now) == 3

    times = asked.order_by("starts_at").values_list("starts_at", flat=True)
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(days=1)}
    assert not world.user("bob").notifications.filter(kind="reservation.missed").exists()


@pytest.mark.django_db
def test_a_time_that_the_flavor_does_not_allow_any_more_is_told_and_the_series_goes_on(world: World) -> None:
    series = reserve(world)
    flavor = series.flavor
    was, flavor.max_duration_s = flavor.max_duration_s, flavor.min_duration_s
    flavor.save()

    assert make_occurrences(now=world.now + timedelta(days=1)) == 0
    flavor.max_duration_s = was
    flavor.save()

    assert make_occurrences(now=world.now + timedelta(days=2)) == 1
    missed = world.user("bob").notifications.get(kind="reservation.missed")
    assert "runs for" in str(missed.facts)
    series.refresh_from_db()
    assert series.cancelled_at is None


@pytest.mark.django_db
def test_nobody_keeps_more_series_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "MOST_SERIES", 1)
    reserve(world)

    with pytest.raises(Conflict, match="1 reservations already"):
        reserve(world)

    assert Reservation.objects.count() == 1
