from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from portal.gateway import sharing
from portal.leases.models import LeaseRequest
from portal.notifications.models import Notification
from tests.portal.builders import H100, World, make_node


def test_every_choice_has_an_option(world: World, berth: Any) -> None:
    starts_at = (world.now + timedelta(days=1)).replace(second=0)

    done = berth(
        "request", "h100", "--hours", "2", "--work", "training", "--preemptible", "--least", "30",
        "--start", f"{starts_at:%Y-%m-%dT%H:%M}Z", "--grow", "3", "--open", "notebook",
    )  # fmt: skip

    assert done.exit_code == 0, done.stderr
    made = LeaseRequest.objects.get()
    assert (made.work, made.is_preemptible, made.least_duration_s) == ("training", True, 1800)
    assert (made.starts_at, made.most_count, made.opens) == (starts_at, 3, "notebook")
    shown = berth("show", made.uid).stdout
    assert "notebook" in shown
    assert "training" in shown
    assert "may grow to" in shown


def test_a_template_and_the_last_one_are_asked_for_by_a_word(world: World, berth: Any) -> None:
    kept = ("template", "save", "Notebook on 10 GB", "h100-1g-10gb", "--hours", "4", "--open", "notebook")
    assert berth(*kept, "--team", "perception", who="alice").exit_code == 0
    assert "Notebook on 10 GB" in berth("template", "list").stdout

    asked = berth("request", "--template", "Notebook on 10 GB", "--name", "mine")
    again = berth("request", "--again", "--count", "2")

    assert (asked.exit_code, again.exit_code) == (0, 0), asked.stderr + again.stderr
    rows = LeaseRequest.objects.order_by("id").values_list("name", "opens", "duration_s", "count")
    assert list(rows) == [("mine", "notebook", 4 * 3600, 1), ("mine", "notebook", 4 * 3600, 2)]
    assert berth("request", "--template", "none").exit_code == 2
    assert berth("request", "h100", "--again").exit_code == 2
    assert berth("template", "remove", "Notebook on 10 GB").exit_code == 1
    assert berth("template", "remove", "Notebook on 10 GB", who="alice").exit_code == 0


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


def test_the_holder_shares_a_lease_and_takes_it_back(
    world: World, berth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.active("bob")

    shared = berth("share", lease.uid, "--with", "alice")
    berth("share", lease.uid, "--all")
    monkeypatch.setattr(sharing, "MOST_SHARES", 2)
    again = berth("share", lease.uid, "--with", "alice")
    Notification.objects.filter(kind="terminal.shared").update(read_at=world.now)
    refused = berth("share", lease.uid, "--with", "charlie")
    left = berth("share", lease.uid, "--end", "--with", "alice")
    berth("share", lease.uid, "--with", "alice")
    none = berth("share", lease.uid, "--end")

    assert (shared.exit_code, again.exit_code, refused.exit_code) == (0, 0, 1)
    # Told once, however often it is shared.
    assert Notification.objects.get(kind="terminal.shared").read_at is not None
    assert "alice" in shared.stdout
    assert "alice" not in left.stdout
    assert "everybody in the team" in left.stdout
    assert "Nobody may watch" in none.stdout + none.stderr
    assert berth("watch", lease.uid, who="alice").exit_code == 1
