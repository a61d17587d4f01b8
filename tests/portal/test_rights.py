from __future__ import annotations

import pytest

from portal.common.errors import Forbidden, NotFound
from portal.teams.models import Role
from portal.teams.selectors import visible_team
from portal.teams.services import add_member
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_a_role_reaches_everything_below_its_team(world: World) -> None:
    rights = world.rights("alice")

    assert rights.has(world.team("perception"), Role.ADMIN)
    assert not rights.has(world.team("northwind"), Role.ADMIN)
    assert not rights.has(world.team("language"), Role.ADMIN)


def test_a_foreign_team_looks_like_a_missing_one(world: World) -> None:
    for slug in ("perception", "no-such-team"):
        with pytest.raises(NotFound):
            visible_team(world.rights("charlie"), slug)


def test_a_visible_team_without_the_role_is_forbidden(world: World) -> None:
    with pytest.raises(Forbidden):
        world.rights("bob").require(world.team("perception"), Role.ADMIN)


@pytest.mark.parametrize("role", [Role.FINANCE, Role.OPERATOR])
def test_only_a_role_on_the_organisation_reaches_fleet_prices_and_months(world: World, role: Role) -> None:
    add_member(team=world.team("vision"), user=world.user("bob"), role=role, now=world.now)

    rights = world.rights("bob")

    assert not rights.is_finance
    assert not rights.is_operator
    assert world.rights("finance").is_finance
    assert world.rights("operator").is_operator
