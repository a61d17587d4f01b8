"""The calendar over HTTP: teams by slug, and by the name people use where one may know it."""

from __future__ import annotations

from typing import Any

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
