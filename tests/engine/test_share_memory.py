"""What a share is guaranteed, and what it may use at most."""

from __future__ import annotations

import pytest

from scheduler.engine import snapshot_from_json, snapshot_to_json
from tests.engine.builder import Cluster


@pytest.mark.parametrize(
    ("asked", "limit"),
    [(0, 8000), (8000, 8000), (20_000, 20_000), (10**9, None)],
    ids=["none named", "the guaranteed amount", "more", "more than the board has"],
)
def test_the_limit_of_a_share_is_its_maximum_and_never_above_its_board(
    cluster: Cluster, asked: int, limit: int | None
) -> None:
    cluster.node("a", "l40s-48gb")
    cluster.request("one", "mps 250 8000", max_memory_mib=asked)

    [slot] = cluster.plan().grants["one"].slots

    assert slot.memory_mib == 8000
    assert slot.max_memory_mib == (limit or cluster.devices[slot.device_id].memory_mib)


def test_a_board_counts_what_is_guaranteed_and_not_the_maximum(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    for number in range(5):
        cluster.request(f"r{number}", "mps 100 11000", max_memory_mib=40_000)

    turn = cluster.plan()

    assert list(turn.grants) == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize("flavor", ["whole", "1g.10gb"])
def test_whole_boards_and_slices_have_no_maximum(cluster: Cluster, flavor: str) -> None:
    cluster.node("a")
    cluster.request("one", flavor, max_memory_mib=20_000)

    [slot] = cluster.plan().grants["one"].slots

    assert slot.max_memory_mib == 0


def test_the_maximum_travels_with_the_snapshot(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    cluster.request("one", "mps 250 8000", max_memory_mib=20_000)

    [claim] = snapshot_from_json(snapshot_to_json(cluster.snapshot())).queue

    assert claim.max_memory_mib == 20_000
