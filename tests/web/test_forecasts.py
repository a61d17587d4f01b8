"""The page that says how good forecasts are, and where they are shown."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from pytest_django import DjangoAssertNumQueries

from portal.leases.models import StartForecast
from portal.policies.models import DurationModel
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn

pytestmark = pytest.mark.django_db


def shown(world: World, *, minutes: tuple[int | None, ...]) -> None:
    """Forecasts of two (P50) and five (P90) minutes, made an hour ago, and when it started."""
    asked = world.submit("bob", "h100", count=8)
    at = world.now - timedelta(hours=1)
    for number, started in enumerate(minutes):
        StartForecast.objects.create(
            request=asked,
            queued_at=at - timedelta(seconds=number),
            made_at=at,
            p50_at=at + timedelta(minutes=2),
            p90_at=at + timedelta(minutes=5),
            started_at=None if started is None else at + timedelta(minutes=started),
        )


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "operator", "finance"])
def test_everybody_sees_how_good_forecasts_are(world: World, signed_in: SignedIn, name: str) -> None:
    shown(world, minutes=(1, 3, 3, 9))

    page = signed_in(name).get("/forecasts/").content.decode()

    assert "75 %" in page
    assert "25 %" in page
    # As a word: a random token of a form may have the letters.
    assert name == "bob" or not re.search(r"\bbob\b", page)


def test_the_page_asks_little_of_the_database(
    world: World, signed_in: SignedIn, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    shown(world, minutes=tuple(range(9)) * 20)
    client = signed_in("charlie")

    with django_assert_max_num_queries(14):
        client.get("/forecasts/")


def test_without_waits_the_page_says_what_is_missing(world: World, signed_in: SignedIn) -> None:
    page = signed_in("bob").get("/forecasts/").content.decode()

    assert "Nothing to judge yet" in page
    assert "Nothing was learned yet" in page


def test_the_duration_model_is_compared_with_what_people_ask_for(world: World, signed_in: SignedIn) -> None:
    DurationModel.objects.create(
        version=1,
        requests=900,
        made_at=world.now,
        figures={
            "judged": 200,
            "predicted": {"median": 0.5, "mean": 0.9},
            "asked": {"median": 1.5, "mean": 2.0},
            "team": None,
        },
    )

    page = signed_in("charlie").get("/forecasts/").content.decode()

    assert "× 1.65" in page
    assert "× 4.48" in page
    assert "unknown" in page


def test_a_waiting_request_shows_the_likely_start_and_the_one_that_nine_of_ten_keep(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    asked = world.submit("bob", "h100")
    world.turn()
    publish(world.now)
    client = signed_in("bob")

    page, listed = (
        client.get(address).content.decode() for address in (f"/requests/{asked.uid}/", "/requests/")
    )

    assert "9 of 10 start by" in page
    assert "9 of 10 start by" in listed
    assert "The same, booked for a fixed time" in page


def test_the_form_shows_both_and_offers_a_booked_time(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    publish(world.now)

    page = (
        signed_in("bob")
        .get("/requests/quote/?flavor=h100&count=1&duration=1 h&team=perception")
        .content.decode()
    )

    assert "9 of 10 start by" in page
    assert "The same, booked for a fixed time" in page
    assert "for certain" in page
