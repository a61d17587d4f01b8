"""CPU and memory of the node beside the boards."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.engine.builder import NOON, Cluster


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb", "mps 250 8000"])
def test_a_request_goes_where_cpu_is_left_beside_the_boards(cluster: Cluster, flavor: str) -> None:
    cluster.node("short", devices=2, host={"cpu_milli": 8000}).hold(0, flavor, cpu_milli=6000)
    cluster.node("roomy", devices=2, host={"cpu_milli": 32000})
    cluster.request("one", flavor, cpu_milli=4000)

    turn = cluster.plan()

    assert turn.node("one") == "roomy"
    assert turn.grants["one"].slots[0].cpu_milli == 4000


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb", "mps 250 8000"])
def test_boards_without_cpu_beside_them_wait_and_the_nearest_node_is_named(
    cluster: Cluster, flavor: str
) -> None:
    cluster.node("a", devices=2, host={"cpu_milli": 8000}).hold(0, flavor, hours=2, cpu_milli=6000)
    cluster.node("b", devices=2, host={"cpu_milli": 8000}).hold(0, flavor, hours=1, cpu_milli=5000)
    cluster.request("one", flavor, cpu_milli=4000)

    figures = cluster.plan().reason("one", "node_resources_short").detail

    assert (figures["node"], figures["cpu_milli"], figures["free_cpu_milli"]) == ("b", 4000, 3000)
    assert figures["free_memory_mib"] is None
    assert figures["next_end"] == (NOON + timedelta(hours=1)).isoformat()
    assert figures["blockers"] == [cluster.held[-1].lease_id]


def test_a_node_whose_cpu_nobody_knows_limits_nothing(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("one", cpu_milli=10**9, host_memory_mib=10**9)

    assert list(cluster.plan().grants) == ["one"]


def test_what_one_claim_takes_is_missing_to_the_next_in_the_same_turn(cluster: Cluster) -> None:
    cluster.node("a", devices=4, host={"memory_mib": 1000})
    for number in range(3):
        cluster.request(f"r{number}", host_memory_mib=400)

    turn = cluster.plan()

    assert list(turn.grants) == ["r0", "r1"]
    assert turn.codes("r2") == ["behind", "node_resources_short"]


def test_several_units_take_cpu_once_for_all_of_them(cluster: Cluster) -> None:
    cluster.node("a", devices=4, host={"cpu_milli": 8000})
    cluster.request("gang", count=3, cpu_milli=8000)

    slots = cluster.plan().grants["gang"].slots

    assert [slot.cpu_milli for slot in slots] == [8000, 0, 0]


def test_more_cpu_than_any_node_has_is_impossible_and_the_most_is_named(cluster: Cluster) -> None:
    cluster.node("a", host={"cpu_milli": 8000, "memory_mib": 100})
    cluster.node("b", host={"cpu_milli": 6000, "memory_mib": 900})
    cluster.request("one", cpu_milli=16000, host_memory_mib=50)

    turn = cluster.plan()

    assert turn.waits["one"].is_impossible
    assert turn.reason("one", "larger_than_any_node").detail == {
        "wanted": {"cpu_milli": 16000},
        "nearest": {"cpu_milli": 8000},
    }


def test_only_nodes_with_enough_cpu_count_for_how_many_units_fit_at_most(cluster: Cluster) -> None:
    cluster.node("many", devices=8, host={"cpu_milli": 1000})
    cluster.node("few", devices=2, host={"cpu_milli": 9000})
    cluster.request("gang", count=4, cpu_milli=5000)

    assert cluster.plan().reason("gang", "larger_than_any_node").detail["nearest"] == {"count": 2}


def test_a_start_is_foreseen_when_cpu_comes_back_on_another_board_of_the_node(cluster: Cluster) -> None:
    cluster.node("a", devices=2, host={"cpu_milli": 8000}).hold(0, hours=3, cpu_milli=6000)
    claim = cluster.claim(-1, "1g.10gb", cpu_milli=4000)
    cluster.change(1, modes=frozenset({"exclusive"}))

    assert cluster.start_of(claim) == 3


def test_what_did_not_fit_with_less_cpu_is_still_tried_with_fewer_units(cluster: Cluster) -> None:
    cluster.node("a", devices=4, host={"cpu_milli": 8000}).hold(0).hold(1).hold(2)
    cluster.request("pair", count=2, cpu_milli=1000)
    cluster.request("one", count=1, cpu_milli=8000)

    assert list(cluster.plan().grants) == ["one"]


def test_free_units_are_bounded_by_cpu(cluster: Cluster) -> None:
    cluster.node("a", devices=8, host={"cpu_milli": 32000}).hold(0, cpu_milli=10000)

    assert cluster.free("whole", cpu_milli=8000) == 2
    assert cluster.free("whole") == 7


def test_a_node_that_lost_cpu_under_its_leases_still_takes_what_wants_none(cluster: Cluster) -> None:
    cluster.node("a", devices=2, host={"cpu_milli": 4000}).hold(0, cpu_milli=6000)
    cluster.request("plain")
    cluster.request("hungry", cpu_milli=1)

    turn = cluster.plan()

    assert list(turn.grants) == ["plain"]
