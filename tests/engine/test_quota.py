from __future__ import annotations

from tests.engine.builder import Cluster


def test_a_claim_above_the_teams_ceiling_waits_with_the_figures(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=3000, used=2500)
    cluster.node("a", devices=2)
    cluster.request("one")

    reason = cluster.plan().reason("one", "quota_ceiling").detail

    assert (reason["name"], reason["ceiling_milli"], reason["used_milli"]) == ("vision", 3000, 2500)
    assert (reason["wanted_milli"], reason["short_milli"]) == (1000, 500)


def test_a_ceiling_is_reached_exactly_and_not_passed_by_one_thousandth(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=2000, used=1000)
    cluster.team("language", ceiling=2000, used=1001)
    cluster.node("a", devices=2)
    cluster.request("exact", team="vision")
    cluster.request("over", team="language")

    turn = cluster.plan()

    assert list(turn.grants) == ["exact"]
    assert turn.reason("over", "quota_ceiling").detail["short_milli"] == 1


def test_the_ceiling_of_any_ancestor_binds(cluster: Cluster) -> None:
    cluster.team("lab", ceiling=1000)
    cluster.team("vision", ceiling=8000, parent="lab")
    cluster.team("perception", parent="vision")
    cluster.node("a", devices=2)
    cluster.request("one", team="perception")
    cluster.request("two", team="perception")

    turn = cluster.plan()

    assert list(turn.grants) == ["one"]
    assert turn.reason("two", "quota_ceiling").detail["name"] == "lab"


def test_a_grant_of_a_sibling_uses_the_parents_headroom(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000)
    cluster.team("perception", parent="vision")
    cluster.team("segmentation", parent="vision")
    cluster.node("a", devices=2)
    cluster.request("one", team="perception")
    cluster.request("two", team="segmentation")

    turn = cluster.plan()

    assert turn.code("two") == "quota_ceiling"


def test_cost_is_share_times_weight_rounded_up(cluster: Cluster) -> None:
    cluster.node("a", weight_milli=1333)
    cluster.request("slice", "1g.10gb", count=2)

    grant = cluster.plan().grants["slice"]

    assert grant.slots[0].share_milli == 125
    assert grant.cost_milli == 2 * 167  # ceil(125 * 1.333)


def test_a_share_costs_what_was_asked(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", weight_milli=500)
    cluster.request("share", "mps 333 1000")

    assert cluster.plan().grants["share"].cost_milli == 167


def test_a_lighter_device_is_taken_when_the_preferred_one_is_above_the_headroom(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=500)
    cluster.node("heavy", devices=1)
    cluster.node("light", "l40s-48gb", devices=2, weight_milli=500)
    cluster.request("any")

    turn = cluster.plan()

    assert turn.node("any") == "light"
    assert turn.grants["any"].cost_milli == 500


def test_only_heavy_devices_left_is_a_matter_of_quota(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=500)
    cluster.node("heavy", devices=1)
    cluster.node("light", "l40s-48gb", weight_milli=500).hold(0)
    cluster.request("any")

    reason = cluster.plan().reason("any", "quota_ceiling").detail

    assert (reason["wanted_milli"], reason["short_milli"]) == (1000, 500)


def test_quota_is_named_before_capacity(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000, used=1000)
    cluster.node("a").hold(0)
    cluster.request("one")

    assert cluster.plan().codes("one") == ["quota_ceiling", "no_capacity"]


def test_a_team_that_is_already_above_its_ceiling_gets_nothing_more(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=1000, used=1500)
    cluster.node("a")
    cluster.request("one", "1g.10gb")

    assert cluster.plan().reason("one", "quota_ceiling").detail["short_milli"] == 625


def test_a_circle_of_parents_does_not_hang_the_engine(cluster: Cluster) -> None:
    cluster.team_id("a")
    cluster.team("b", parent="a")
    cluster.team("a", parent="b", ceiling=0)
    cluster.quotas["a"] = type(cluster.quotas["a"])(1, 2, 0, 0, "a")
    cluster.quotas["b"] = type(cluster.quotas["b"])(2, 1, None, 0, "b")
    cluster.node("n")
    cluster.request("one", team="b")

    assert cluster.plan().waits["one"].is_impossible
