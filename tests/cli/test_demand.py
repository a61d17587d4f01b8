from __future__ import annotations

import json
from typing import Any

from portal.load.forecasts import make_forecasts
from tests.load.test_demand import history
from tests.portal.builders import World


def test_demand_is_told_by_hour_with_what_the_forecast_rests_on(world: World, berth: Any) -> None:
    assert "Nothing can be forecast yet." in berth("forecast", "demand").output
    history(world, 200)
    make_forecasts(now=world.now, most=100)

    shown = berth("forecast", "demand", "--team", "perception").stdout
    found = json.loads(berth("forecast", "demand", "--json").stdout)

    assert "8 of 28 needed" in shown
    assert "2.00" in shown
    assert (found["team"], len(found["ahead"]), found["scores"]) == ("perception", 168, [])
    assert berth("forecast", "demand", "--team", "perception", who="charlie").exit_code != 0
