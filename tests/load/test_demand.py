"""Hours of demand, their forecast, and who sees it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from portal.fleet.models import DeviceModel
from portal.load.forecasts import forecast_of, make_forecasts, peak_within, scores_of
from portal.load.hours import HOUR, full_hour, roll_up_load, wanted_hours
from portal.load.models import LoadForecast, LoadHour
from tests.portal.builders import H100, World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


def history(world: World, hours: int, *, team: str = "perception", milli: int = 2000) -> datetime:
    """Store so many hours until now of a working day's demand; returns the end of the last one."""
    until = full_hour(world.now)
    model = DeviceModel.objects.get(slug=H100)
    LoadHour.objects.bulk_create(
        LoadHour(
            at=until - n * HOUR,
            device_model=model,
            team=world.team(team),
            held_milli_s=milli * 3600 * (2 if 8 <= (until - n * HOUR).hour < 18 else 1),
        )
        for n in range(1, hours + 1)
    )
    return until


def test_held_and_waited_for_are_stored_by_hour_and_once(world: World) -> None:
    begin = full_hour(world.now) - 3 * HOUR
    world.ended("bob", "h100", count=2, at=begin + HOUR / 2, seconds=3600)
    waiting = world.submit("charlie", "h100", count=3, at=begin + HOUR)
    assert waiting.state == "queued"
    now = begin + 3 * HOUR + timedelta(minutes=7)

    roll_up_load(now=now)
    first = list(
        LoadHour.objects.order_by("at", "team").values_list("at", "team", "held_milli_s", "waited_milli_s")
    )
    roll_up_load(now=now)

    assert first == list(
        LoadHour.objects.order_by("at", "team").values_list("at", "team", "held_milli_s", "waited_milli_s")
    )
    hours = wanted_hours(since=begin, until=begin + 3 * HOUR, model=None, teams=None)
    assert [round(held) for held, _waited in hours] == [1000, 1000, 0]
    assert [round(waited) for _held, waited in hours] == [0, 3000, 3000]
    ours = wanted_hours(since=begin, until=begin + 3 * HOUR, model=None, teams=[world.team("perception").pk])
    assert [round(waited) for _held, waited in ours] == [0, 0, 0]
    # The running hour is not over.
    assert not LoadHour.objects.filter(at__gte=begin + 3 * HOUR).exists()


def test_a_forecast_is_made_for_fleet_pool_and_teams_once_an_hour(world: World) -> None:
    until = history(world, 5 * 168)

    assert make_forecasts(now=world.now, most=100) == 2 + len(world.team("perception").lineage)
    assert make_forecasts(now=world.now, most=100) == 0
    assert make_forecasts(now=world.now + HOUR, most=1) == 1

    row = forecast_of(team=world.team("vision").pk)
    assert row is not None
    assert len(row.likely) == len(row.low) == len(row.high) == 168
    assert row.hours == 5 * 168
    assert [(score.first, score.last) for score in scores_of(row)] == [(1, 1), (2, 24), (25, 168)]
    by_hour = {(until + n * HOUR).hour: value for n, value in enumerate(row.likely[:24])}
    assert by_hour[12] == pytest.approx(4000, rel=0.05)
    assert by_hour[3] == pytest.approx(2000, rel=0.05)
    assert LoadForecast.objects.filter(version=2).count() == 1


def test_the_hour_of_the_most_demand_is_the_first_of_the_highest(world: World) -> None:
    until = history(world, 168)
    make_forecasts(now=world.now, most=100)
    row = forecast_of()
    assert row is not None

    found = peak_within(row, [until + n * HOUR for n in range(24)])

    assert found is not None
    assert found[1] == 4000
    assert found[0] == min(at for n in range(24) if 8 <= (at := until + n * HOUR).hour < 18)
    assert peak_within(row, [until - HOUR]) is None


def test_the_operators_home_names_the_hour_of_the_most_demand_only_where_one_is_forecast(
    world: World, signed_in: SignedIn
) -> None:
    assert "Most demand is expected" not in signed_in("operator").get("/").text
    history(world, 168)
    make_forecasts(now=world.now, most=100)

    text = signed_in("operator").get("/").text

    assert "4.0 devices, as in the same hour last week." in text


def test_the_page_says_how_much_history_is_missing(world: World, signed_in: SignedIn) -> None:
    assert "Nothing was wanted yet" in signed_in("operator").get("/forecasts/demand/").text
    history(world, 200)
    make_forecasts(now=world.now, most=100)

    text = signed_in("operator").get(f"/forecasts/demand/?pool={H100}").text

    assert "it needs 20 more days of history" in text
    assert "Nothing to judge yet" in text


def test_the_page_shows_the_backtest_to_members_and_nothing_of_others(
    world: World, signed_in: SignedIn
) -> None:
    history(world, 4 * 168)
    make_forecasts(now=world.now, most=100)
    charlie = signed_in("charlie")

    text = signed_in("bob").get("/forecasts/demand/").text

    assert "Perception" in text
    assert "Error of the same hour last week" in text
    assert "Whole fleet" not in text
    assert charlie.get("/forecasts/demand/?team=perception").status_code == 404
    assert charlie.get(f"/forecasts/demand/?pool={H100}").status_code == 404
    assert signed_in("operator").get("/forecasts/demand/?pool=x").status_code == 404
    assert signed_in("operator").get("/forecasts/demand/?pool=x&team=vision").status_code == 404


def test_the_api_tells_past_and_week_to_come_by_hour(world: World, signed_in: SignedIn) -> None:
    history(world, 4 * 168)
    make_forecasts(now=world.now, most=100)
    token = {"HTTP_AUTHORIZATION": f"Bearer {world.token('bob')}"}

    found = signed_in("bob").get("/api/v1/forecasts/demand/?team=perception", **token).json()

    assert (found["team"], found["pool"], found["version"], found["hours"]) == ("perception", None, 1, 672)
    assert (len(found["past"]), len(found["ahead"]), len(found["scores"])) == (336, 168, 3)
    assert found["ahead"][0]["at"] > found["past"][-1]["at"]
