"""The page of waste: for everybody of the teams that they see anyway."""

from __future__ import annotations

import re
from datetime import timedelta

from portal.billing.metering import meter_all
from tests.portal.builders import World
from tests.web.conftest import SignedIn


def test_waste_is_shown_of_teams_in_sight_and_unknown_is_not_zero(world: World, signed_in: SignedIn) -> None:
    world.ended("bob", seconds=60, at=world.now - timedelta(seconds=90))
    meter_all(now=world.now + timedelta(minutes=1))

    text = signed_in("alice").get("/reports/waste/").text
    assert "Perception" in text
    assert "unknown" in text
    assert "Perception" not in signed_in("charlie").get("/reports/waste/?team=perception").text


def test_what_layouts_stranded_is_for_who_sees_the_fleet(world: World, signed_in: SignedIn) -> None:
    world.ended("bob", seconds=60, at=world.now - timedelta(seconds=90))

    finance, alice = (signed_in(name).get("/reports/waste/").text for name in ("finance", "alice"))

    assert "Stranded by layout" not in alice
    # Nobody noted whether the nodes were there.
    assert re.search(
        r'Stranded by layout</dt><dd><span class="stat-value"><a href="[^"]+">unknown</a>', finance
    )
    assert "Stranded by layout" not in signed_in("finance").get("/reports/waste/?team=vision").text
