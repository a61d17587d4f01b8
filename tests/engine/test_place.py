from __future__ import annotations

import pytest

from scheduler.engine.model import PolicyRules
from scheduler.engine.place.policy import POLICIES
from tests.engine.builder import Cluster


def test_a_whole_device_comes_from_the_node_with_the_fewest_free_ones(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(place="binpack")
    cluster.node("roomy", devices=4)
    cluster.node("tight", devices=4).hold(0).hold(1).hold(2)
    cluster.request("one")

    assert cluster.plan().node("one") == "tight"


def test_a_gang_keeps_to_one_link_domain_where_it_can(cluster: Cluster) -> None:
    cluster.node("a", devices=4).domains("x", "y", "y", "x").hold(0)
    cluster.request("pair", count=2)

    assert cluster.plan().places("pair") == [(2, 0), (3, 0)]


def test_a_small_claim_leaves_the_bigger_link_domain_whole(cluster: Cluster) -> None:
    cluster.node("a", devices=3).domains("x", "x", "y")
    cluster.request("one")

    assert cluster.plan().places("one") == [(3, 0)]


def test_a_gang_is_never_spread_over_nodes(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0)
    cluster.node("b", devices=2).hold(0)
    cluster.request("pair", count=2)

    turn = cluster.plan()

    assert turn.grants == {}
    assert turn.reason("pair", "gang_incomplete").detail["fits"] == 1


def test_an_incomplete_gang_takes_nothing_from_those_behind(cluster: Cluster) -> None:
    cluster.node("a", devices=4).hold(0)
    cluster.request("gang", count=4)
    cluster.request("trio", count=3)

    assert list(cluster.plan().grants) == ["trio"]


def test_slices_fill_the_board_in_use_before_opening_another(cluster: Cluster) -> None:
    cluster.node("a", devices=3).hold(1, "2g.20gb", 0)
    cluster.request("slice", "1g.10gb")

    turn = cluster.plan()

    assert [device for device, _ in turn.places("slice")] == [2]


def test_the_fullest_board_that_fits_is_used_first(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, "1g.10gb", 0).hold(1, "4g.40gb", 0)
    cluster.request("slice", "3g.40gb")

    assert cluster.plan().places("slice") == [(2, 4)]


def test_the_fullest_board_counts_across_nodes_too(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "1g.10gb", 0)
    cluster.node("b").hold(0, "4g.40gb", 0)
    cluster.request("slice", "3g.40gb")

    assert cluster.plan().node("slice") == "b"


def test_a_3g_stands_at_start_4_so_that_a_4g_can_pair_with_it(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("three", "3g.40gb")
    cluster.request("four", "4g.40gb")

    turn = cluster.plan()

    assert turn.places("three") == [(1, 4)]
    assert turn.places("four") == [(1, 0)]


def test_a_second_3g_takes_start_0(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "3g.40gb", 4)
    cluster.request("three", "3g.40gb")

    assert cluster.plan().places("three") == [(1, 0)]


def test_a_pinned_layout_allows_its_positions_only(cluster: Cluster) -> None:
    cluster.node("a").layout(("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4))
    cluster.request("pair", "2g.20gb", count=2)
    cluster.request("third", "2g.20gb")

    turn = cluster.plan()

    assert turn.places("pair") == [(1, 0), (1, 2)]
    assert "third" in turn.waits


def test_a_profile_is_made_no_more_often_than_its_board_allows(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("media", "1g.10gb+me")
    cluster.request("more media", "1g.10gb+me")

    turn = cluster.plan()

    assert list(turn.grants) == ["media"]


def test_a_foreign_partition_of_unknown_profile_counts_for_every_profile_of_its_span(
    cluster: Cluster,
) -> None:
    words = cluster.node("a").hold(0, "1g.10gb", 3, lease=None)
    foreign = cluster.held[-1]
    cluster.held[-1] = type(foreign)(1, 3, 1, "mig", 0, None, foreign.until)
    cluster.request("media", "1g.10gb+me")

    assert words.devices == [1]
    assert "media" in cluster.plan().waits


def test_a_board_with_live_slices_is_not_given_whole_nor_shared(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "1g.10gb", 0)
    cluster.request("whole")
    cluster.request("share", "mps 100 1000")

    assert cluster.plan().grants == {}


def test_a_board_given_whole_is_not_sliced_nor_shared(cluster: Cluster) -> None:
    cluster.node("a").hold(0)
    cluster.request("slice", "1g.10gb")
    cluster.request("share", "mps 100 1000")

    assert cluster.plan().grants == {}


def test_shares_of_one_team_gather_on_the_fullest_host(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", devices=3).hold(1, "mps 100 1000").hold(2, "mps 500 1000")
    cluster.request("share", "mps 250 8000")

    turn = cluster.plan()

    assert turn.places("share") == [(3, 0)]
    assert turn.grants["share"].slots[0].size == 0


def test_memory_binds_a_share_as_well_as_compute(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", devices=2).hold(0, "mps 100 40000")
    cluster.request("share", "mps 250 20000")

    assert cluster.plan().places("share") == [(2, 0)]


def test_clients_bind_a_share_too(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", max_clients=2).hold(0, "mps 10 10").hold(0, "mps 10 10")
    cluster.request("share", "mps 10 10")

    assert "share" in cluster.plan().waits


def test_a_board_hosts_one_shared_mode_at_a_time(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 100 1000")
    cluster.request("share", "memlimit 100 1000")

    assert "share" in cluster.plan().waits


def test_another_team_does_not_get_onto_a_shared_board(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 100 1000", team="vision", hours=2)
    cluster.request("share", "mps 100 1000", team="language")

    turn = cluster.plan()

    assert turn.codes("share") == ["mps_of_other_teams", "no_capacity"]
    assert turn.reason("share", "mps_of_other_teams").detail["boards"] == 1


def test_a_policy_may_let_teams_share_a_board(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(share_across_teams=True)
    cluster.node("a", "l40s-48gb").hold(0, "memlimit 100 1000", team="vision")
    cluster.request("share", "memlimit 100 1000", team="language")

    assert list(cluster.plan().grants) == ["share"]


def test_the_first_share_keeps_the_board_for_its_team_within_the_same_turn(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    cluster.request("ours", "mps 100 1000", team="vision")
    cluster.request("ours too", "mps 100 1000", team="vision")
    cluster.request("theirs", "mps 100 1000", team="language")

    turn = cluster.plan()

    assert list(turn.grants) == ["ours", "ours too"]
    assert turn.codes("theirs")[:2] == ["behind", "mps_of_other_teams"]


def test_shares_of_one_claim_stand_on_different_boards(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", devices=2)
    cluster.request("pair", "mps 250 8000", count=2)

    assert cluster.plan().places("pair") == [(1, 0), (2, 0)]


def test_a_model_that_was_asked_for_is_the_one_that_is_given(cluster: Cluster) -> None:
    cluster.node("a", "a100-80gb")
    cluster.node("b", "h100-80gb")
    cluster.request("hopper", models=("h100-80gb",))

    assert cluster.plan().node("hopper") == "b"


def test_nothing_is_placed_on_a_blocked_node_or_device(cluster: Cluster) -> None:
    cluster.node("a", blocked="cordoned")
    cluster.node("b", devices=2)
    cluster.change(2, blocked="health")
    cluster.request("one")

    assert cluster.plan().places("one") == [(3, 0)]


def test_free_units_count_claims_and_ignore_queue_and_quota(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=0)
    cluster.node("a", devices=3, modes=frozenset({"exclusive", "mig"})).hold(0, "3g.40gb", 4)
    cluster.node("b", "l40s-48gb", devices=2).hold(0, "mps 500 1000")
    cluster.request("ahead")

    assert cluster.free("whole") == 3
    assert cluster.free("3g.40gb") == 5
    assert cluster.free("whole", count=2) == 1
    assert cluster.free("mps 250 8000") == 2 + 4
    assert cluster.free("mps 250 8000", team="language") == 4
    assert cluster.free("mps 250 8000", count=2) == 2


@pytest.mark.parametrize("place", sorted(POLICIES))
@pytest.mark.parametrize("flavor", ["whole", "1g.10gb", "mps 250 8000"])
def test_a_policy_may_keep_idle_nodes_asleep(cluster: Cluster, place: str, flavor: str) -> None:
    cluster.policy = PolicyRules(place=place, keep_empty=8)
    for name in ("a", "b", "c", "d"):
        node = cluster.node(name, devices=4)
        if name == "c":
            node.hold(1)
    for number in range(3):
        cluster.request(f"r{number}", flavor)

    turn = cluster.plan()

    assert {turn.node(name) for name in turn.grants} == {"c"}
    assert len(turn.grants) == 3


def test_memory_of_shares_is_not_oversubscribed_unless_the_policy_says_so(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 250 40000")
    cluster.request("share", "mps 250 12000")

    assert "share" in cluster.plan().waits

    cluster.policy = PolicyRules(memory_factors=(("l40s-48gb", 1250),))
    assert "share" in cluster.plan().waits, "a board in use keeps what it was opened with"

    cluster.held.clear()
    for number in range(4):
        cluster.request(f"more {number}", "mps 250 14000")
    turn = cluster.plan()
    assert len(turn.grants) == 4
    assert {slot.board_memory_mib for grant in turn.grants.values() for slot in grant.slots} == {
        46068 * 5 // 4
    }


def test_no_share_gets_more_memory_than_its_board_has(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(memory_factors=(("l40s-48gb", 2000),))
    cluster.node("a", "l40s-48gb")
    cluster.request("share", "mps 250 50000")

    assert cluster.plan().code("share") == "larger_than_any_node"
