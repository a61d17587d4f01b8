from __future__ import annotations

import pytest

from scheduler.engine.model import PolicyRules
from tests.engine.builder import Cluster

PAIR = (("3g.40gb", 0), ("3g.40gb", 4))


@pytest.fixture
def pinned(cluster: Cluster) -> Cluster:
    cluster.policy = PolicyRules(repartition=True)
    cluster.node("a", devices=2).layout(*PAIR)
    return cluster


def test_an_idle_board_is_cut_anew_for_a_slice_that_no_layout_has(pinned: Cluster) -> None:
    pinned.request("small", "1g.10gb")

    found = pinned.decided()

    assert len(found.grants) == 1
    [cut] = found.repartitions
    [slot] = found.grants[0].slots
    assert cut.device_id == slot.device_id
    assert ("1g.10gb", slot.start) in cut.layout


def test_without_the_policys_leave_nothing_is_cut(pinned: Cluster) -> None:
    pinned.policy = PolicyRules()
    pinned.request("small", "1g.10gb")

    found = pinned.decided()

    assert (found.grants, found.repartitions) == ((), ())
    assert found.waits[0].is_impossible


def test_a_board_in_use_is_never_cut(pinned: Cluster) -> None:
    pinned.hold(1, "3g.40gb", 0, team="vision", hours=1, lease=-1)
    pinned.hold(2, "3g.40gb", 4, team="vision", hours=1, lease=-1)
    pinned.request("small", "1g.10gb")

    found = pinned.decided()

    assert (found.grants, found.repartitions) == ((), ())
    assert not found.waits[0].is_impossible
    assert found.waits[0].reasons[0].code == "no_capacity"


def test_nobody_loses_a_grant_to_a_cut(pinned: Cluster) -> None:
    for number in range(4):
        pinned.request(f"half {number}", "3g.40gb")
    pinned.request("small", "1g.10gb")

    found = pinned.decided()

    assert len(found.grants) == 4
    assert found.repartitions == ()
    assert not found.waits[0].is_impossible


def test_what_no_cut_can_hold_stays_impossible(pinned: Cluster) -> None:
    pinned.request("other board", "1g.6gb")

    assert pinned.decided().waits[0].is_impossible
