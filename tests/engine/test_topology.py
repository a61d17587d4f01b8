"""Several boards of one request lie as close together as the node allows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine import kernel
from scheduler.engine.columns import COUNT, EXCLUSIVE, IDLE, USE, WANT_FIELDS, Columns, columns
from scheduler.engine.model import PolicyRules
from scheduler.engine.place import node_ratings
from tests.engine.builder import Cluster, NodeWords

SEATS = [(numa, switch) for numa in range(2) for switch in (2 * numa, 2 * numa + 1) for _ in range(2)]


def eight(cluster: Cluster, name: str = "a", links: str = "xxxxxxxx") -> NodeWords:
    """Eight boards: two NUMA nodes of two switches of two boards."""
    words = cluster.node(name, devices=8)
    for device_id, link, (numa, switch) in zip(words.devices, links, SEATS, strict=True):
        cluster.change(device_id, domain=link, numa=numa, switch=f"s{switch}")
    return words


def boards(cluster: Cluster, name: str) -> list[int]:
    return [device for device, _ in cluster.plan().places(name)]


def test_a_pair_gets_the_boards_of_one_switch(cluster: Cluster) -> None:
    eight(cluster).hold(0).hold(2)
    cluster.request("pair", count=2)

    assert boards(cluster, "pair") == [5, 6]


def test_a_pair_without_a_free_switch_stays_on_one_numa_node(cluster: Cluster) -> None:
    eight(cluster).hold(1).hold(2).hold(3).hold(4).hold(6)
    cluster.request("pair", count=2)

    assert boards(cluster, "pair") == [6, 8]


def test_four_get_a_numa_node_of_their_own(cluster: Cluster) -> None:
    eight(cluster).hold(2)
    cluster.request("four", count=4)

    assert boards(cluster, "four") == [5, 6, 7, 8]


def test_one_board_is_taken_where_a_switch_is_broken_already(cluster: Cluster) -> None:
    eight(cluster).hold(5)
    cluster.request("one")

    assert boards(cluster, "one") == [5]


def test_a_fast_link_counts_more_than_a_shared_switch(cluster: Cluster) -> None:
    eight(cluster, links="xyxyxyxy")
    cluster.request("pair", count=2)

    assert boards(cluster, "pair") == [1, 3]


def test_six_of_one_domain_are_not_mixed_with_another(cluster: Cluster) -> None:
    eight(cluster, links="xxxxxxyy")
    cluster.request("six", count=6)

    assert boards(cluster, "six") == [1, 2, 3, 4, 5, 6]


def test_of_equal_nodes_the_one_where_a_link_domain_is_whole_is_taken(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(place="binpack")
    eight(cluster, "torn", links="xxxxyyyy").hold(0).hold(4)
    eight(cluster, "whole", links="xxxxyyyy").hold(0).hold(1)
    cluster.request("four", count=4)

    assert cluster.plan().node("four") == "whole"


@st.composite
def rows(draw: st.DrawFn) -> tuple[Columns, np.ndarray, int]:
    """One node of eight boards with any domains, some taken, and a request that fits."""
    at = columns([1], [1], [0], [8])
    at.link[0] = draw(st.lists(st.integers(0, 2), min_size=8, max_size=8))
    at.numa[0] = [numa for numa, _ in SEATS]
    at.switch[0] = [switch for _, switch in SEATS]
    taken = draw(st.lists(st.booleans(), min_size=8, max_size=8))
    at.use[0] = np.where(taken, EXCLUSIVE, IDLE)
    free = [board for board in range(8) if not taken[board]]
    want = np.zeros(WANT_FIELDS, np.int64)
    want[USE], want[COUNT] = EXCLUSIVE, draw(st.integers(0, len(free)))
    return at, want, sum(1 << board for board in free)


def spans(at: Columns, chosen: tuple[int, ...]) -> tuple[int, int, int]:
    return tuple(len({int(level[0, b]) for b in chosen}) for level in (at.link, at.numa, at.switch))  # type: ignore[return-value]


@settings(max_examples=300, deadline=None)
@given(rows())
def test_what_fits_in_one_domain_of_a_level_is_never_given_from_two(
    given_rows: tuple[Columns, np.ndarray, int],
) -> None:
    at, want, free = given_rows

    bits = node_ratings.whole_boards(at, want, 0)

    chosen = tuple(board for board in range(8) if (bits >> board) & 1)
    assert len(chosen) == want[COUNT]
    assert bits & ~free == 0
    everything = [
        spans(at, some) for some in combinations([b for b in range(8) if (free >> b) & 1], len(chosen))
    ]
    links, numas, switches = min(everything)
    mine = spans(at, chosen)
    assert mine[0] == links
    if links == 1:
        assert mine[1] == min(numa for link, numa, _ in everything if link == 1)
        if numas == 1 and switches == 1:
            assert mine == (1, 1, 1)


@pytest.mark.deep
@pytest.mark.skipif(not kernel.can_compile(), reason="numba is not installed: kernels run as plain Python")
def test_compiled_and_plain_choose_the_same_boards() -> None:
    fast = kernel.compiled(node_ratings.whole_boards)
    chance = np.random.default_rng(7)
    for _ in range(200):
        at = columns([1], [1], [0], [8])
        for level in (at.link, at.numa, at.switch):
            level[0] = chance.integers(0, 3, 8)
        at.use[0] = chance.integers(0, 2, 8)
        want = np.zeros(WANT_FIELDS, np.int64)
        want[USE], want[COUNT] = EXCLUSIVE, chance.integers(0, 1 + (at.use[0] == IDLE).sum())

        assert fast(at, want, 0) == node_ratings.whole_boards(at, want, 0)
