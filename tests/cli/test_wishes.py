from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from portal.leases.models import LeaseRequest
from tests.portal.builders import H100, World, make_node


def test_every_choice_has_an_option(world: World, berth: Any) -> None:
    starts_at = (world.now + timedelta(days=1)).replace(second=0)

    done = berth(
        "request", "h100", "--hours", "2", "--work", "training", "--preemptible", "--least", "30",
        "--start", f"{starts_at:%Y-%m-%dT%H:%M}Z", "--grow", "3",
    )  # fmt: skip

    assert done.exit_code == 0, done.stderr
    made = LeaseRequest.objects.get()
    assert (made.work, made.is_preemptible, made.least_duration_s) == ("training", True, 1800)
    assert (made.starts_at, made.most_count) == (starts_at, 3)
    shown = berth("show", made.uid).stdout
    assert "training" in shown
    assert "may grow to" in shown


def test_a_start_that_is_no_time_is_wrong_usage(world: World, berth: Any) -> None:
    done = berth("quote", "h100", "--hours", "1", "--start", "soon")

    assert done.exit_code == 2
    assert "--start" in done.stderr


def test_a_gang_is_quoted_asked_for_and_shown_with_its_parts(world: World, berth: Any) -> None:
    make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)

    quoted = berth("quote", "h100", "--hours", "1", "--count", "2", "--nodes", "2", "--json", who="alice")
    done = berth("request", "h100", "--hours", "1", "--count", "2", "--nodes", "2", who="alice")

    assert json.loads(quoted.stdout)["price"]["amount"] == "14.40"
    leases = world.turn()
    world.ready(*leases)
    shown = berth("show", leases[1].uid, who="alice").stdout
    assert "gpu-02 (part 2 of 2)" in shown
    assert f"{leases[0].uid} on gpu-01, active" in shown
    assert "export BERTH_NODES=gpu-01,gpu-02" in shown
    assert "2 with 2 each" in berth("show", done.stdout.strip(), who="alice").stdout


def test_growing_is_stopped_from_the_command_line_and_not_by_a_stranger(world: World, berth: Any) -> None:
    request = world.submit("bob", "h100", most_count=3)

    assert berth("grow", request.uid, "2").exit_code == 0
    assert berth("grow", request.uid, "1", who="charlie").exit_code == 1

    request.refresh_from_db()
    assert request.most_count == 2
