from __future__ import annotations

import json
from typing import Any

from portal.common.models import InvariantCheck
from portal.fleet.models import Node
from tests.portal.builders import World


def test_operators_let_a_node_sleep_and_wake_it(world: World, berth: Any) -> None:
    Node.objects.filter(name="gpu-01").update(power_state="awake")

    sent = json.loads(berth("node", "sleep", "gpu-01", "--json", who="operator").stdout)
    woken = json.loads(berth("node", "wake", "gpu-01", "--json", who="operator").stdout)
    shown = berth("node", "power", "gpu-01", who="operator").stdout

    assert (sent["may_sleep_any_time"], sent["saved_wh"]) == (True, None)
    assert woken["kept_awake_until"] is not None
    assert "unknown" in shown


def test_others_are_told_that_it_is_not_theirs_to_do(world: World, berth: Any) -> None:
    assert [berth("node", what, "gpu-01").exit_code for what in ("power", "wake", "sleep")] == [1, 1, 1]
    assert Node.objects.get(name="gpu-01").power_rule == ""


def test_the_check_of_the_invariants_is_shown_and_ends_with_1_where_one_is_broken(
    berth: Any, world: World
) -> None:
    nothing = berth("invariants", who="operator")
    InvariantCheck.objects.create(
        tried_at=world.now,
        checked_at=world.now,
        breaches=[
            {
                "name": "quota_counters",
                "promise": "A counter is its sum.",
                "since": world.now.isoformat(),
                "offenders": ["7"],
            }
        ],
    )

    broken = berth("invariants", who="operator")

    assert "No check was finished yet" in nothing.stderr
    assert broken.exit_code == 1
    assert "quota_counters" in broken.stdout
    assert berth("invariants", who="bob").exit_code == 1
