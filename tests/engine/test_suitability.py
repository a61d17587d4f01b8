"""Boards by what they can do instead of by model, and wishes about where and how good."""

from __future__ import annotations

import pytest

from scheduler.engine import EngineState
from scheduler.engine.model import PolicyRules
from scheduler.engine.place.policy import POLICIES
from tests.engine.builder import Cluster

SMALL = {
    "memory_mib": 24576,
    "bandwidth_gbps": 300,
    "compute_class": 1,
    "modes": frozenset({"exclusive", "mps"}),
}
LARGE = {"memory_mib": 81920, "bandwidth_gbps": 2000, "compute_class": 3, "modes": SMALL["modes"]}


def two_kinds(cluster: Cluster, devices: int = 2) -> None:
    cluster.node("large", "h100-80gb", devices, **LARGE)
    cluster.node("small", "l40s-48gb", devices, **SMALL)


@pytest.mark.parametrize(
    "least", [{"least_memory_mib": 40000}, {"least_bandwidth_gbps": 1000}, {"least_class": 2}]
)
def test_any_board_that_has_as_much_will_do_whatever_its_model(
    cluster: Cluster, least: dict[str, int]
) -> None:
    cluster.node("small", "l40s-48gb", **SMALL)
    cluster.node("large", "h100-80gb", **LARGE)
    cluster.request("one", **least)
    cluster.request("two", **least)

    turn = cluster.plan()

    assert turn.node("one") == "large"
    assert turn.codes("two") == ["behind", "no_capacity"]


def test_a_figure_nobody_knows_is_never_enough(cluster: Cluster) -> None:
    cluster.node("a", compute_class=None)
    cluster.request("one", least_class=1)

    figures = cluster.plan().reason("one", "no_such_device").detail

    assert figures["least"] == {"class": 1}


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
def test_a_small_card_goes_first_where_better_ones_are_kept(policy: str) -> None:
    cluster = Cluster(PolicyRules(place=policy, keep_better=1.0))
    two_kinds(cluster)
    for number in range(3):
        cluster.request(f"r{number}")

    turn = cluster.plan()

    assert [turn.node(f"r{n}") for n in range(3)] == ["small", "small", "large"]


def test_small_cards_go_first_for_shares_and_slices_too(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(keep_better=0.5)
    two_kinds(cluster)
    cluster.node("older", "a100-40gb", profiles=("1g.5gb",), compute_class=2)
    cluster.node("newer", "a100-40gb", profiles=("1g.5gb",), compute_class=4)
    cluster.request("share", "mps 250 8000", models=("h100-80gb", "l40s-48gb"))
    cluster.request("slice", "1g.5gb")

    turn = cluster.plan()

    assert (turn.node("share"), turn.node("slice")) == ("small", "older")


def test_without_the_wish_room_alone_decides(cluster: Cluster) -> None:
    two_kinds(cluster, devices=1)
    cluster.request("one")

    assert cluster.plan().node("one") == "large"


def test_what_a_request_needs_is_not_better_than_needed(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(keep_better=1.0)
    two_kinds(cluster)
    cluster.request("fast", least_class=3)

    assert cluster.plan().node("fast") == "large"


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb"])
def test_a_zone_that_is_asked_for_is_kept_to(cluster: Cluster, flavor: str) -> None:
    cluster.node("north", host={"zone": "north"})
    cluster.node("south", host={"zone": "south"}).hold(0)
    cluster.node("nowhere")
    cluster.request("one", flavor, zone="south")
    cluster.request("lost", flavor, zone="west")

    turn = cluster.plan()

    assert turn.codes("one") == ["no_capacity"]
    assert turn.reason("lost", "no_such_device").detail["zone"] == "west"


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb", "mps 250 8000"])
def test_a_zone_one_would_like_is_left_only_when_it_is_full(cluster: Cluster, flavor: str) -> None:
    cluster.node("north", host={"zone": "north"})
    cluster.node("south", host={"zone": "south"})
    cluster.request("one", "whole", near_zone="south")
    cluster.request("two", flavor, near_zone="south")

    turn = cluster.plan()

    assert (turn.node("one"), turn.node("two")) == ("south", "north")


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb", "mps 250 8000"])
def test_what_needs_containers_waits_for_a_node_that_runs_them(cluster: Cluster, flavor: str) -> None:
    cluster.node("bare")
    cluster.node("engine", host={"has_containers": True})
    for number in range(2):
        cluster.request(f"boxed{number}", "whole", needs_containers=True)
    cluster.request("any", flavor)

    turn = cluster.plan()

    assert (turn.node("boxed0"), turn.node("any")) == ("engine", "bare")
    assert "no_such_device" not in turn.codes("boxed1")


def test_containers_that_no_node_runs_are_named(cluster: Cluster) -> None:
    cluster.node("bare")
    cluster.request("boxed", "whole", needs_containers=True)

    assert cluster.plan().reason("boxed", "no_such_device").detail["containers"] is True


def test_wishes_hold_in_a_state_that_has_answered_before(cluster: Cluster) -> None:
    cluster.node("north", host={"zone": "north"})
    cluster.node("south", host={"zone": "south"})
    state = EngineState.from_snapshot(cluster.snapshot(), PolicyRules())
    zones = ["north", "south"] * 12  # more kinds than the columns have at first

    nodes = [
        state.decide(cluster.claim(-n - 1, near_zone=zone, least_memory_mib=n)).node_id  # type: ignore[union-attr]
        for n, zone in enumerate(zones)
    ]

    assert nodes == [1, 2] * 12
