"""Where a team stands by fair share: page, API and command show the same, to those who may see it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.quotas.fair_share import standing_of
from portal.quotas.models import PersonUsage
from portal.teams.models import Role
from portal.teams.services import add_member
from scheduler.usage import settle
from tests.api.conftest import calls  # noqa: F401
from tests.cli.conftest import berth, home, one_connection  # noqa: F401
from tests.portal.builders import EPOCH, World, make_user
from tests.web.conftest import SignedIn

HOUR_MILLI_S = 3_600_000


@pytest.fixture
def used(world: World) -> World:
    """bob used three GPU-hours in perception, dora one; segmentation beside it one; all settled now."""
    for name, team, hours in (
        ("bob", "perception", 3),
        ("dora", "perception", 1),
        ("emil", "segmentation", 1),
    ):
        if name not in world.people:
            world.people[name] = make_user(name)
            add_member(team=world.team(team), user=world.user(name), role=Role.RESEARCHER, now=EPOCH)
        PersonUsage.objects.create(
            team=world.team(team), user=world.user(name), used_milli_s=hours * HOUR_MILLI_S, as_of=world.now
        )
    return world


def test_a_team_is_compared_with_its_siblings_and_people_with_each_other(used: World) -> None:
    found = standing_of(used.team("perception"), used.rights("alice"), now=used.now)

    assert (found.team.rank, found.team.siblings) == (2, 2)
    assert (found.team.share, found.team.part, found.team.ratio) == (0.5, 0.8, 1.6)
    assert [(user.username, at.rank, at.part) for user, at in found.people] == [
        ("dora", 1, 0.25),
        ("bob", 2, 0.75),
    ]


def test_guarantees_are_shares(used: World) -> None:
    found = standing_of(used.team("robotics"), used.rights("operator"), now=used.now)

    assert found.team.share == 2000 / 10_000
    assert (found.team.part, found.team.ratio, found.team.rank) == (0, 0, 1)


def test_use_is_shown_decayed_to_now(used: World) -> None:
    found = standing_of(used.team("perception"), used.rights("alice"), now=used.now + timedelta(days=7))

    assert found.team.used_milli_s == 2 * HOUR_MILLI_S
    assert found.as_of == used.now


def test_what_nobody_used_has_no_part_and_no_ratio(world: World) -> None:
    found = standing_of(world.team("perception"), world.rights("alice"), now=world.now)

    assert (found.team.part, found.team.ratio, found.as_of, found.people) == (None, None, None, [])


def test_researchers_see_themselves_and_admins_everybody(used: World, calls: Any) -> None:  # noqa: F811
    bob = calls("bob").get("teams/perception/standing/").json()
    alice = calls("alice").get("teams/perception/standing/").json()

    assert [row["username"] for row in bob["people"]] == ["bob"]
    assert [row["username"] for row in alice["people"]] == ["dora", "bob"]
    assert (alice["rank"], alice["siblings"], alice["share_milli"]) == (2, 2, 500)
    assert (alice["part_milli"], alice["ratio_milli"]) == (800, 1600)
    assert alice["used_milli_s"] == pytest.approx(4 * HOUR_MILLI_S, rel=1e-3)
    assert alice["order"] == "priority_fifo"
    assert alice["counts"] is False


def test_charlie_meets_another_teams_standing_like_a_missing_one(used: World, calls: Any) -> None:  # noqa: F811
    foreign = calls("charlie").get("teams/perception/standing/")
    missing = calls("charlie").get("teams/nothing-here/standing/")

    assert foreign.status_code == missing.status_code == 404
    assert foreign.json()["code"] == missing.json()["code"]


def test_the_team_page_shows_the_standing(used: World, signed_in: SignedIn) -> None:
    text = signed_in("alice").get("/teams/perception/").text

    assert "Fair share" in text
    assert "2 of 2" in text
    assert "1.60" in text
    assert "Dora" in text
    assert "the active policy does not weigh what was used" in text


def test_the_page_says_so_while_nothing_was_used(world: World, signed_in: SignedIn) -> None:
    assert "Nothing was used yet" in signed_in("bob").get("/teams/perception/").text


def test_what_the_worker_settles_is_what_the_page_shows(world: World, signed_in: SignedIn) -> None:
    world.active("bob", "h100", at=world.now - timedelta(hours=1), duration_s=7200)

    settle(now=world.now)

    text = signed_in("bob").get("/teams/perception/").text
    assert ">1.0<" in text  # GPU-hours
    assert "Settled" in text


def test_the_command_prints_it(used: World, berth: Any) -> None:  # noqa: F811
    shown = berth("team", "standing", "perception")
    foreign = berth("team", "standing", "language")

    assert shown.exit_code == 0, shown.stderr
    assert "2 of 2" in shown.stdout
    assert "1.60" in shown.stdout
    assert foreign.exit_code == 1
