"""What can be asked beside flavor, number and time: kind of work, start, price, shortest time, nodes, growth."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.catalog.models import Flavor
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import H100, World, make_node

ASK = {"flavor": "h100", "duration_s": 7200}


@pytest.fixture
def wide(world: World) -> World:
    """The small installation with a second node of 8 x H100."""
    world.nodes["gpu-02"] = make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)
    return world


def test_everything_that_was_chosen_is_kept_and_read_again(world: World, calls: Any) -> None:
    starts_at = (world.now + timedelta(days=2)).isoformat()
    chosen = {
        "work": "training", "is_preemptible": True, "least_duration_s": 3600, "starts_at": starts_at,
        "most_count": 4, "opens": "notebook",
    }  # fmt: skip
    bob = calls("bob")

    made = bob.post("requests/", {**ASK, **chosen})

    assert made.status_code == 201, made.text
    seen = bob.get(f"requests/{made.json()['id']}/").json()
    assert {name: seen[name] for name in chosen if name != "starts_at"} == {
        name: value for name, value in chosen.items() if name != "starts_at"
    }
    assert LeaseRequest.objects.get().starts_at == world.now + timedelta(days=2)
    assert (seen["nodes"], seen["price_milli"]) == (1, 1000)


def test_what_may_be_taken_back_costs_less_in_quote_and_request(world: World, calls: Any) -> None:
    Flavor.objects.filter(slug="h100").update(preemptible_milli=600)
    bob = calls("bob")

    usual, less = (bob.post("quote/", {**ASK, "is_preemptible": wish}).json() for wish in (False, True))
    made = bob.post("requests/", {**ASK, "is_preemptible": True}).json()

    assert (usual["price"]["amount"], less["price"]["amount"]) == ("7.20", "4.32")
    assert (made["quote"]["amount"], made["price_milli"]) == ("4.32", 600)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"work": "play"}, "work"),
        ({"opens": "game"}, "opens"),
        ({"is_preemptible": "yes"}, "is_preemptible"),
        ({"is_preemptible": 1}, "is_preemptible"),
        ({"least_duration_s": -1}, "least_duration_s"),
        ({"least_duration_s": 7201}, "least_duration_s"),
        ({"starts_at": "tomorrow"}, "starts_at"),
        ({"starts_at": "2001-01-01T00:00:00Z"}, "starts_at"),
        ({"starts_at": "2999-01-01T00:00:00Z"}, "starts_at"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": 1001}, "nodes"),
        ({"nodes": 2, "flavor": "h100-1g-10gb"}, "nodes"),
        ({"nodes": 2, "most_count": 8}, "most_count"),
        ({"most_count": 9}, "most_count"),
        ({"count": 3, "most_count": 2}, "most_count"),
    ],
)
@pytest.mark.parametrize("path", ["requests/", "quote/"])
def test_bad_values_are_refused_by_name_and_change_nothing(
    world: World, calls: Any, path: str, wish: dict[str, Any], field: str
) -> None:
    answer = calls("bob").post(path, {**ASK, **wish})

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert not LeaseRequest.objects.exists()


def test_more_nodes_than_there_are_is_impossible_and_says_how_many_could(wide: World, calls: Any) -> None:
    refused = calls("alice").post("requests/", {**ASK, "nodes": 3, "count": 8})

    assert (refused.status_code, refused.json()["code"]) == (422, "impossible")
    assert refused.json()["facts"]["nearest_nodes"] == 2


def test_the_parts_of_a_gang_are_told_on_request_and_lease(wide: World, calls: Any) -> None:
    request = wide.submit("alice", "h100", nodes=2, count=4)
    leases = wide.turn()
    wide.ready(*leases)
    alice = calls("alice")

    asked = alice.get(f"requests/{request.uid}/").json()
    second = alice.get(f"leases/{leases[1].uid}/").json()
    access = alice.get(f"leases/{leases[1].uid}/access/").json()

    assert set(asked["leases"]) == {ls.uid for ls in leases}
    assert second["part"] == 1
    assert [(p["part"], p["node"], p["count"]) for p in second["parts"]] == [
        (0, "gpu-01", 4),
        (1, "gpu-02", 4),
    ]
    devices = ",".join(slot["partition"] for slot in access["slots"])
    assert access["environment"] == {
        "CUDA_VISIBLE_DEVICES": devices,
        "BERTH_NODES": "gpu-01,gpu-02", "BERTH_NODE_COUNT": "2", "BERTH_NODE_RANK": "1",
    }  # fmt: skip


def test_releasing_one_part_over_the_api_releases_all(wide: World, calls: Any) -> None:
    wide.submit("alice", "h100", nodes=2, count=1)
    leases = wide.turn()
    wide.ready(*leases)

    assert calls("alice").post(f"leases/{leases[0].uid}/release/").status_code == 200

    assert set(Lease.objects.values_list("state", flat=True)) == {"ending"}


def test_how_far_it_grows_can_be_set_by_whom_it_belongs_to(world: World, calls: Any) -> None:
    request = world.submit("bob", "h100", most_count=4)
    path = f"requests/{request.uid}/growth/"

    done = calls("bob").post(path, {"most_count": 1})

    assert (done.status_code, done.json()["most_count"]) == (200, 1)
    assert calls("charlie").post(path, {"most_count": 2}).status_code == 404
    assert calls("approver").post(path, {"most_count": 2}).status_code == 403
    assert calls("bob").post(path, {"most_count": 9}).status_code == 422
    plain = world.submit("bob")
    assert calls("bob").post(f"requests/{plain.uid}/growth/", {"most_count": 2}).status_code == 409


def test_a_stranger_sees_nothing_of_a_gang(wide: World, calls: Any) -> None:
    request = wide.submit("alice", "h100", nodes=2, count=1)
    leases = wide.turn()
    charlie = calls("charlie")

    assert charlie.get(f"requests/{request.uid}/").status_code == 404
    for lease in leases:
        assert charlie.get(f"leases/{lease.uid}/").status_code == 404
        assert charlie.post(f"leases/{lease.uid}/release/").status_code == 404
