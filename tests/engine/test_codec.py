from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler.engine import snapshot_from_json, snapshot_to_json
from scheduler.engine.codec import TableTexts
from scheduler.engine.demand import Demand, Form, FreeCapacity
from scheduler.engine.errors import BadSnapshot
from scheduler.engine.learning.demand import relearned
from tests.engine.builder import Cluster


@pytest.fixture
def full(cluster: Cluster) -> Cluster:
    cluster.team("vision", ceiling=4000, used=10)
    cluster.team("语言组", parent="vision")
    cluster.node("a", devices=2).hold(0, "3g.40gb", 4).domains("x", "y")
    cluster.node("b", "l40s-48gb", blocked="offline").hold(0, "mps 500 1000")
    cluster.node("c").layout(("2g.20gb", 0))
    cluster.request("one", models=("h100-80gb", "a100-80gb"))
    cluster.request("two", "mps 250 8000", team="语言组")
    return cluster


def test_a_snapshot_comes_back_equal_from_its_bytes(full: Cluster) -> None:
    snapshot = full.snapshot()

    data = snapshot_to_json(snapshot)

    assert snapshot_from_json(data) == snapshot
    assert snapshot_to_json(snapshot_from_json(data)) == data


def test_learned_demand_travels_with_the_snapshot(full: Cluster) -> None:
    asked = {
        (Form(4000, 1024, 500, 1, "h100-80gb|a100-80gb"), True): 100,
        (Form(0, 0, 1000, 2, ""), False): 100,
    }
    demand = relearned(Demand(), 3, asked, FreeCapacity(((1000, 30),), 20_000, 50_000))
    assert demand is not None
    snapshot = replace(full.snapshot(), demand=demand)

    assert snapshot_from_json(snapshot_to_json(snapshot)) == snapshot


@pytest.mark.parametrize(
    "demand",
    [
        [],
        [1, [], {}, 0, 0, 0],
        [0, [], [], 0, 0, 0],
        [1, [[0, 0, 1001, 1, "", 1]], [], 0, 0, 0],
        [1, [], [], 1000, 0, 0],
        [1, [], [], 0, 1001, 0],
        [1, [], [], 0, 0, -1],
        [1, [], [], 0, 0],
        "unknown",
    ],
)
def test_demand_that_makes_no_sense_is_refused(full: Cluster, demand: Any) -> None:
    document = json.loads(snapshot_to_json(full.snapshot())) | {"demand": demand}

    with pytest.raises(BadSnapshot, match="demand"):
        snapshot_from_json(json.dumps(document).encode())


def test_boards_of_one_kind_are_written_once(full: Cluster) -> None:
    document = json.loads(snapshot_to_json(full.snapshot()))

    assert len(document["boards"]) == 2


def broken(full: Cluster, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(snapshot_to_json(full.snapshot()))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("snapshot", lambda d: d.update(v=1)),
        ("snapshot", lambda d: d.update(extra=1)),
        ("snapshot", lambda d: d.pop("queue")),
        ("taken_at", lambda d: d.update(taken_at="noon")),
        ("taken_at", lambda d: d.update(taken_at=10**30)),
        ("taken_at", lambda d: d.update(taken_at=9 * 10**18)),
        ("queue", lambda d: d.update(queue={})),
        ("queue[0]", lambda d: d["queue"][0].pop()),
        ("queue[0]", lambda d: d["queue"][0].append(1)),
        ("queue[1]", lambda d: d["queue"].__setitem__(1, "x")),
        ("queue[0]", lambda d: d["queue"][0].__setitem__(3, 0)),
        ("queue[0]", lambda d: d["queue"][0].__setitem__(3, True)),
        ("queue[0]", lambda d: d["queue"][0].__setitem__(2, "vgpu")),
        ("queue[0]", lambda d: d["queue"][0].__setitem__(2, [])),
        ("devices[0]", lambda d: d["devices"][0].__setitem__(7, 99)),
        ("devices[0]", lambda d: d["devices"][0].__setitem__(3, 0)),
        ("held[0]", lambda d: d["held"][0].__setitem__(9, 1)),
        ("quotas[0]", lambda d: d["quotas"][0].__setitem__(3, 1.5)),
        ("nodes[0]", lambda d: d["nodes"][0].__setitem__(1, None)),
        ("boards[0]", lambda d: d["boards"][0][0].__setitem__(1, 0)),
    ],
)
def test_anything_else_is_refused_with_its_place(
    full: Cluster, where: str, change: Callable[[dict[str, Any]], object]
) -> None:
    data = broken(full, change)

    with pytest.raises(BadSnapshot) as caught:
        snapshot_from_json(data)

    assert caught.value.where == where
    assert caught.value.code == "bad_snapshot"


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"1e999"])
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        snapshot_from_json(data)


def test_what_was_written_before_is_written_the_same_again(full: Cluster) -> None:
    written, first = TableTexts(), full.snapshot()
    full.request("three", "mps 125 4000", team="vision")
    second = full.snapshot()

    texts = [snapshot_to_json(one, written) for one in (first, second, first)]

    assert texts == [snapshot_to_json(one) for one in (first, second, first)]
