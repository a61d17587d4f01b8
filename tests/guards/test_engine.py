"""A shared board has so many seats, whatever share and memory are left."""

from __future__ import annotations

import pytest

from portal.fleet.models import Device
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_a_board_whose_seats_are_taken_gets_no_further_share(world: World) -> None:
    Device.objects.filter(node__name="gpu-03").update(max_clients=1)
    for _ in range(5):
        world.submit("bob", "l40s-quarter")

    assert len(world.turn()) == 4  # one on each of the four boards
