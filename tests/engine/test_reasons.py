from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler.engine.reasons import REASONS
from tests.engine.builder import NOON, Cluster


def test_no_capacity_says_how_much_when_and_who(cluster: Cluster) -> None:
    cluster.node("a", devices=4).hold(0, hours=3).hold(1, hours=1).hold(2, hours=2).hold(3, hours=4)
    cluster.request("one")

    figures = cluster.plan().reason("one", "no_capacity").detail

    assert (figures["wanted"], figures["free"], figures["total"]) == (1, 0, 4)
    assert figures["next_end"] == (NOON + timedelta(hours=1)).isoformat()
    assert figures["blockers"] == [101, 102, 100]


def test_an_overdue_placement_is_expected_now_not_in_the_past(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=-1)
    cluster.request("one")

    assert cluster.plan().reason("one", "no_capacity").detail["next_end"] == NOON.isoformat()


def test_what_a_claim_ahead_took_this_turn_is_said(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("first")
    cluster.request("second")

    turn = cluster.plan()

    assert turn.codes("second") == ["behind", "no_capacity"]
    assert turn.reason("second", "behind").detail == {"position": 1, "granted": 1}


def test_loose_slices_that_form_no_position_are_fragmented(cluster: Cluster) -> None:
    cluster.node("a").hold(0, "1g.10gb", 1).hold(0, "1g.10gb", 5)
    cluster.request("three", "3g.40gb")

    figures = cluster.plan().reason("three", "fragmented").detail

    assert (figures["wanted"], figures["free"], figures["unit"]) == (4, 6, "slices")


def test_a_slice_that_no_profile_can_use_is_not_called_free(cluster: Cluster) -> None:
    words = cluster.node("a")
    for start in range(7):
        words.hold(0, "1g.10gb", start)
    cluster.request("one", "1g.10gb")

    assert cluster.plan().code("one") == "no_capacity"


def test_share_that_is_free_only_in_sum_is_fragmented(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb", devices=2).hold(0, "mps 700 1000").hold(1, "mps 700 1000")
    cluster.request("half", "mps 500 1000")

    figures = cluster.plan().reason("half", "fragmented").detail

    assert (figures["wanted"], figures["free"], figures["unit"]) == (500, 600, "share_milli")


def test_a_gang_that_fits_in_part_says_how_many(cluster: Cluster) -> None:
    cluster.node("a", devices=4).hold(0)
    cluster.request("gang", count=4)

    figures = cluster.plan().reason("gang", "gang_incomplete").detail

    assert (figures["wanted"], figures["fits"]) == (4, 3)


def test_blocked_nodes_that_could_serve_are_listed_with_their_reason(cluster: Cluster) -> None:
    cluster.node("a", blocked="offline", devices=2)
    cluster.node("b").hold(0)
    cluster.node("c", "l40s-48gb", blocked="cordoned")
    cluster.request("slice", "1g.10gb")

    turn = cluster.plan()

    assert "nodes_blocked" in turn.codes("slice")[1:]
    assert turn.reason("slice", "nodes_blocked").detail["nodes"] == [
        {"node": "a", "blocked": "offline", "devices": 2}
    ]


def test_when_every_matching_node_is_blocked_that_is_the_main_reason(cluster: Cluster) -> None:
    cluster.node("a", blocked="offline")
    cluster.request("one")

    turn = cluster.plan()

    assert turn.codes("one") == ["nodes_blocked"]
    assert not turn.waits["one"].is_impossible


def test_a_model_nobody_has_is_impossible_and_the_nearest_are_named(cluster: Cluster) -> None:
    cluster.node("a", "a100-80gb")
    cluster.request("one", models=("b200-180gb",))

    turn = cluster.plan()

    assert turn.waits["one"].is_impossible
    assert turn.reason("one", "no_such_device").detail["nearest"]["models"] == ["a100-80gb"]


def test_a_profile_nobody_offers_is_impossible_and_the_offered_are_named(cluster: Cluster) -> None:
    cluster.node("a").layout(("2g.20gb", 0))
    cluster.request("one", "3g.40gb")

    figures = cluster.plan().reason("one", "no_such_device").detail

    assert figures["nearest"]["profiles"] == ["2g.20gb"]


def test_more_units_than_any_node_has_is_impossible(cluster: Cluster) -> None:
    cluster.node("a", devices=2, blocked="offline")
    cluster.node("b", devices=1)
    cluster.request("three", count=3)

    turn = cluster.plan()

    assert turn.waits["three"].is_impossible
    assert turn.reason("three", "larger_than_any_node").detail == {
        "wanted": {"count": 3},
        "nearest": {"count": 2},
    }


def test_more_memory_than_any_board_has_is_impossible(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    cluster.request("big", "mps 500 99999")

    figures = cluster.plan().reason("big", "larger_than_any_node").detail

    assert figures["nearest"]["memory_mib"] == cluster.devices[1].memory_mib


def test_a_cost_above_the_ceiling_is_impossible_even_when_the_team_is_idle(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=2500)
    cluster.node("a", devices=8)
    cluster.request("four", count=4)

    turn = cluster.plan()

    assert turn.waits["four"].is_impossible
    assert turn.reason("four", "above_quota").detail["nearest"] == {"count": 2}


@pytest.mark.parametrize(
    "figures",
    [
        {"count": 0},
        {"count": -1},
        {"duration_s": 0},
        {"duration_s": 10**18},
        {"share_milli": -5},
        {"memory_mib": -1},
    ],
)
def test_figures_that_make_no_sense_are_refused_and_harm_nobody_else(
    cluster: Cluster, figures: dict[str, int]
) -> None:
    cluster.node("a", devices=2)
    bad = {"share_milli": 1000, **figures}
    cluster.request("bad", **bad)  # type: ignore[arg-type]
    cluster.request("good")

    turn = cluster.plan()

    assert turn.code("bad") == "malformed"
    assert turn.waits["bad"].is_impossible
    assert list(turn.grants) == ["good"]


def test_equal_claims_share_one_reason_object(cluster: Cluster) -> None:
    cluster.node("a").hold(0)
    cluster.request("one")
    cluster.request("two")

    turn = cluster.plan()

    assert turn.waits["one"].reasons is turn.waits["two"].reasons


def test_every_reason_given_carries_the_figures_the_table_promises(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=9000, used=8900)
    cluster.node("a", "l40s-48gb", devices=2, modes=frozenset({"mps"})).hold(
        0, "mps 700 1000", team="language"
    ).hold(1, "mps 700 1000")
    cluster.node("b", devices=2).hold(0).hold(1, "1g.10gb", 2).hold(1, "1g.10gb", 6)
    cluster.node("c", blocked="offline")
    cluster.node("d", "a30-24gb", host={"cpu_milli": 8000})
    cluster.request("cpu", models=("a30-24gb",), cpu_milli=8000)
    cluster.request("more cpu", models=("a30-24gb",), cpu_milli=8000)
    cluster.request("most cpu", models=("a30-24gb",), cpu_milli=9000)
    for number, (flavor, count) in enumerate(
        [("whole", 1), ("whole", 2), ("whole", 9), ("3g.40gb", 1), ("mps 300 1000", 1), ("mps 500 10", 1)]
    ):
        for team in ("vision", "language"):
            cluster.request(f"{number} {team}", flavor, count, team=team)
    cluster.request("none", models=("x",))

    given = {r.code: r for wait in cluster.plan().waits.values() for r in wait.reasons}

    assert len(given) >= 6
    assert {code: set(r.detail) for code, r in given.items()} == {
        code: set(REASONS[code].figures) for code in given
    }


def test_paused_boards_are_the_reason_with_the_end_of_the_last_of_them(cluster: Cluster) -> None:
    for name in ("a", "b"):
        cluster.node(name)
    ends = [NOON + timedelta(minutes=15), NOON + timedelta(minutes=10)]
    for device_id, end in zip(cluster.devices, ends, strict=True):
        cluster.change(device_id, blocked="paused", paused_until=end)
    cluster.request("one")

    turn = cluster.plan()

    assert (turn.codes("one"), turn.waits["one"].is_impossible) == (["intake_paused"], False)
    figures = turn.reason("one", "intake_paused").detail
    assert figures == {"nodes": ["a", "b"], "more": 0, "until": ends[0].isoformat()}


def test_a_pause_and_not_its_sleep_holds_a_node_that_would_be_woken(cluster: Cluster) -> None:
    cluster.node("a", blocked="asleep")
    cluster.node("b", blocked="cordoned")
    for device_id in cluster.devices:
        cluster.change(device_id, blocked="paused", paused_until=NOON)
    cluster.request("one")

    turn = cluster.plan()

    assert turn.codes("one") == ["intake_paused", "nodes_blocked"]
    assert turn.reason("one", "intake_paused").detail["nodes"] == ["a"]
    assert turn.reason("one", "nodes_blocked").detail["nodes"] == [
        {"node": "b", "blocked": "cordoned", "devices": 1}
    ]
