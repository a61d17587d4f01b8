"""Gangs over several nodes: all or nothing, the tightest rack, as few nodes as possible."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.engine import Ended, EngineState, Granted, kernel
from scheduler.engine.columns import COUNT, EXCLUSIVE, IDLE, MILLI, SHARE, USE, WANT_FIELDS, WHOLE, columns
from scheduler.engine.demand import Demand, Form
from scheduler.engine.events import held_by
from scheduler.engine.model import Grant, PolicyRules
from scheduler.engine.place import gang
from scheduler.engine.place.policy import POLICIES, Decider, policy_named
from tests.engine.builder import NOON, Cluster, Turn

STEADY = sorted(set(POLICIES) - {"random"})


def racks(cluster: Cluster, *names: str, devices: int = 2, zone: str = "") -> None:
    """A node per name, in the rack that its first letter names."""
    for name in names:
        cluster.node(name, devices=devices, host={"rack": name[0], "zone": zone})


def nodes(cluster: Cluster, turn: Turn, name: str) -> list[str]:
    """The node of each slot of a grant."""
    return [turn.node_names[cluster.devices[slot.device_id].node_id] for slot in turn.grants[name].slots]


@pytest.mark.parametrize("policy", STEADY)
def test_equal_parts_go_to_one_rack_where_it_has_enough_nodes(policy: str) -> None:
    cluster = Cluster(PolicyRules(place=policy))
    racks(cluster, "a1", "b1", "b2", "c1", "c2", "c3")
    cluster.hold(3, "whole", 0, team="vision", hours=1, lease=-1)
    cluster.request("gang", count=2, nodes=3)

    turn = cluster.plan()

    assert nodes(cluster, turn, "gang") == ["c1", "c1", "c2", "c2", "c3", "c3"]
    assert turn.node("gang") == "c1"


def test_of_racks_that_are_equally_good_the_one_with_least_left_is_taken(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", "a3", "b1", "b2")
    cluster.request("gang", count=2, nodes=2)

    assert set(nodes(cluster, cluster.plan(), "gang")) == {"b1", "b2"}


def test_a_gang_larger_than_any_rack_takes_as_few_racks_as_possible(cluster: Cluster) -> None:
    racks(cluster, "a1", "b1", "b2", "c1", "c2", "d1")
    cluster.request("gang", count=2, nodes=4)

    assert sorted(set(nodes(cluster, cluster.plan(), "gang"))) == ["b1", "b2", "c1", "c2"]


def test_a_gang_larger_than_any_rack_keeps_to_a_zone_that_has_room(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", zone="north")
    racks(cluster, "b1", "c1", "d1", zone="south")
    cluster.request("gang", count=2, nodes=3)

    assert sorted(set(nodes(cluster, cluster.plan(), "gang"))) == ["b1", "c1", "d1"]


def test_nodes_whose_rack_nobody_knows_are_not_taken_for_neighbours(cluster: Cluster) -> None:
    cluster.node("x", devices=2)
    cluster.node("y", devices=2)
    racks(cluster, "a1", "a2")
    cluster.request("gang", count=1, nodes=2)

    assert sorted(nodes(cluster, cluster.plan(), "gang")) == ["a1", "a2"]


def test_a_gang_takes_nothing_while_one_part_is_missing(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2")
    cluster.hold(1, "whole", 0, team="vision", hours=2, lease=-1)
    cluster.request("gang", count=2, nodes=2)

    figures = cluster.plan().reason("gang", "gang_incomplete").detail
    cluster.request("three", count=3, nodes=0)

    assert list(cluster.plan().grants) == ["three"]
    assert (figures["nodes"], figures["nodes_fit"], figures["wanted"]) == (2, 1, 2)


def test_boards_anywhere_take_one_node_where_it_is_big_enough(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", "a3", devices=2)
    racks(cluster, "b1", devices=4)
    cluster.request("four", count=4, nodes=0)

    assert set(nodes(cluster, cluster.plan(), "four")) == {"b1"}


def test_boards_anywhere_take_as_few_nodes_of_one_rack_as_possible(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", "a3", devices=2)
    racks(cluster, "b1", "b2", devices=3)
    racks(cluster, "c1", devices=1)
    cluster.request("five", count=5, nodes=0, cpu_milli=1000)

    turn = cluster.plan()

    assert sorted(nodes(cluster, turn, "five")) == ["b1", "b1", "b1", "b2", "b2"]
    assert sorted(slot.cpu_milli for slot in turn.grants["five"].slots) == [0, 0, 0, 400, 600]


def test_boards_anywhere_wait_for_the_last_one(cluster: Cluster) -> None:
    racks(cluster, "a1", "b1")
    cluster.hold(1, "whole", 0, team="vision", hours=2, lease=-1)
    cluster.request("four", count=4, nodes=0)

    figures = cluster.plan().reason("four", "gang_incomplete").detail

    assert (figures["nodes"], figures["fits"], figures["wanted"]) == (0, 3, 4)


def test_each_node_of_a_gang_gives_its_own_cpu(cluster: Cluster) -> None:
    cluster.node("a", devices=2, host={"cpu_milli": 8000})
    cluster.node("b", devices=2, host={"cpu_milli": 3000})
    cluster.node("c", devices=2, host={"cpu_milli": 4000})
    cluster.request("gang", count=2, nodes=2, cpu_milli=4000)
    cluster.request("more", count=1, nodes=2, cpu_milli=4000)

    turn = cluster.plan()

    assert sorted(set(nodes(cluster, turn, "gang"))) == ["a", "c"]
    assert [slot.cpu_milli for slot in turn.grants["gang"].slots] == [4000, 0, 4000, 0]
    assert "more" in turn.waits


@pytest.mark.parametrize(
    ("wants", "nearest"),
    [
        ({"count": 2, "nodes": 3}, {"nodes": 2}),
        ({"count": 9, "nodes": 0}, {"count": 5}),
    ],
)
def test_a_gang_that_the_idle_fleet_cannot_hold_is_impossible(
    cluster: Cluster, wants: dict[str, int], nearest: dict[str, int]
) -> None:
    racks(cluster, "a1", "a2")
    racks(cluster, "b1", devices=1)
    cluster.request("gang", **wants)  # type: ignore[arg-type]

    turn = cluster.plan()

    assert turn.waits["gang"].is_impossible
    assert turn.reason("gang", "larger_than_fleet").detail["nearest"] == nearest


@pytest.mark.parametrize("wants", [{"flavor": "1g.10gb", "nodes": 2}, {"flavor": "whole", "nodes": -1}])
def test_gangs_over_nodes_are_of_whole_boards(cluster: Cluster, wants: dict[str, object]) -> None:
    racks(cluster, "a1", "a2")
    cluster.request("gang", **wants)  # type: ignore[arg-type]

    assert cluster.plan().reason("gang", "malformed").detail["field"] == "nodes"


def test_a_gang_starts_when_the_last_node_it_needs_comes_free(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", devices=1)
    cluster.hold(1, "whole", 0, team="vision", hours=2, lease=-1)
    cluster.hold(2, "whole", 0, team="vision", hours=5, lease=-1)

    assert cluster.start_of(cluster.claim(-1, nodes=2)) == 5
    assert cluster.start_of(cluster.claim(-1, count=2, nodes=0)) == 5


def test_a_team_pays_for_every_board_of_a_gang(cluster: Cluster) -> None:
    cluster.team("vision", ceiling=3000)
    racks(cluster, "a1", "a2")
    cluster.request("gang", count=2, nodes=2)

    assert cluster.plan().reason("gang", "above_quota").detail["wanted_milli"] == 4000


def test_what_a_gang_gives_back_is_free_on_every_node(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", "a3")
    state = EngineState.from_snapshot(cluster.snapshot(), PolicyRules())
    claim = cluster.claim(7, count=2, nodes=3)
    grant = state.decide(claim)
    assert isinstance(grant, Grant)

    state.apply(Granted(grant, NOON))
    full = state.decide(claim)
    state.apply(Ended(held_by(grant, NOON)))

    assert not isinstance(full, Grant)
    assert state.decide(claim) == grant


def test_gangs_that_could_start_together_are_counted(cluster: Cluster) -> None:
    racks(cluster, "a1", "a2", "a3", devices=4)

    assert cluster.free("whole", count=2, nodes=2) == 3
    assert cluster.free("whole", count=4, nodes=2) == 1
    assert cluster.free("whole", count=5, nodes=0) == 2


@pytest.mark.deep
@pytest.mark.skipif(not kernel.can_compile(), reason="numba is not installed: kernels run as plain Python")
@pytest.mark.parametrize("policy", ["default"])
def test_compiled_and_plain_give_gangs_the_same_boards(policy: str) -> None:
    plain, fast = (decider(policy, is_compiled=fast) for fast in (False, True))

    for row in range(4):
        for parts in (1, 2, 5, 9, 40):
            assert fast.equal(row, parts) == plain.equal(row, parts)
        assert fast.free(row) == plain.free(row)


def decider(policy: str, *, is_compiled: bool) -> gang.GangDecider:
    """Forty nodes in racks of nine, three of which nobody knows, partly taken by chance."""
    chance = np.random.default_rng(5)
    at = columns([64000] * 40, [10**6] * 40, [0] * 40, [4] * 40)
    taken = chance.random((40, 4)) < 0.3
    at.use[:] = np.where(taken, EXCLUSIVE, IDLE)
    at.free[:] = np.where(taken, 0, WHOLE)
    at.cpu[:] -= 8000 * taken.sum(1)
    wants = np.zeros((4, WANT_FIELDS), np.int64)
    wants[:, USE], wants[:, MILLI], wants[:, SHARE] = EXCLUSIVE, WHOLE, WHOLE
    wants[:, COUNT] = 1, 2, 4, 30
    rule = policy_named(policy)
    forms = (Form(8000, 0, WHOLE, 1, ""), 3), (Form(32000, 0, WHOLE, 4, ""), 1)
    tables = rule.tables(Demand(1, forms, ((WHOLE, 1.0),)), ("x",), at)
    where = gang.places(
        ["" if n % 13 == 5 else f"r{n // 9}" for n in range(40)], [f"z{n // 27}" for n in range(40)]
    )
    return gang.GangDecider(Decider(rule, at, wants, tables, is_compiled=is_compiled), rule, where)
