"""The calendar over HTTP: teams by slug, and by the name people use where one may know it."""

from __future__ import annotations

from typing import Any

from portal.teams.models import Membership
from tests.portal.builders import World


def test_an_entry_names_its_team_by_slug_and_as_people_call_it(world: World, calls: Any) -> None:
    world.active("bob", duration_s=7200)

    (own,) = calls("bob").get("calendar/").json()["results"]
    (strange,) = calls("charlie").get("calendar/").json()["results"]

    assert (own["team"], own["team_name"]) == ("perception", "Perception")
    assert (strange["team"], strange["team_name"], strange["is_known"]) == ("", "", False)


def test_the_calendar_of_one_team_is_asked_for_by_its_slug(world: World, calls: Any) -> None:
    world.active("bob", duration_s=7200)
    world.active("alice", duration_s=7200)

    found = calls("alice").get("calendar/?team=perception").json()["results"]

    assert {entry["team"] for entry in found} == {"perception"}
    assert calls("alice").get("calendar/?team=Perception").json()["results"] == []


def test_a_calendar_of_no_time_or_of_years_is_refused_by_its_end(world: World, calls: Any) -> None:
    bob = calls("bob")

    answers = [
        bob.get("calendar/?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z"),
        bob.get("calendar/?from=2026-03-02T00:00:00Z&to=2026-12-01T00:00:00Z"),
    ]

    assert [answer.status_code for answer in answers] == [422, 422]
    assert {e["field"] for answer in answers for e in answer.json()["errors"]} == {"to"}


def test_the_calendar_of_one_node_or_model_leaves_the_others_out(world: World, calls: Any) -> None:
    lease = world.active("bob", duration_s=7200)
    bob = calls("bob")

    assert len(bob.get(f"calendar/?node={lease.node.name}").json()["results"]) == 1
    assert len(bob.get("calendar/?model=h100-80gb").json()["results"]) == 1
    assert bob.get("calendar/?model=l40s-48gb").json()["results"] == []
    assert bob.get("calendar/?node=no-such-node").json()["results"] == []


def test_somebody_of_no_team_sees_that_a_place_is_taken_and_not_by_whom(world: World, calls: Any) -> None:
    world.active("bob", duration_s=7200)
    Membership.objects.filter(user=world.user("charlie")).delete()

    (entry,) = calls("charlie").get("calendar/").json()["results"]

    assert (entry["team"], entry["is_known"]) == ("", False)
