from __future__ import annotations

import pytest

from scheduler.engine.order.fair_tree import Branch, decayed, fair_ranks, level_factors


def test_a_branch_that_used_less_of_its_share_goes_before_with_all_its_people() -> None:
    tree = [
        Branch("vision", 1, children=(Branch("alice", 1, 90), Branch("bob", 1, 10))),
        Branch("speech", 1, children=(Branch("charlie", 1, 60), Branch("dora", 1, 30))),
    ]

    ranks = fair_ranks(tree)

    assert sorted(ranks, key=ranks.__getitem__) == ["dora", "charlie", "bob", "alice"]


def test_equal_branches_let_their_people_compete_directly() -> None:
    tree = [
        Branch("vision", 1, children=(Branch("alice", 1, 45), Branch("bob", 1, 5))),
        Branch("speech", 1, children=(Branch("charlie", 1, 20), Branch("dora", 1, 30))),
    ]

    ranks = fair_ranks(tree)

    assert sorted(ranks, key=ranks.__getitem__) == ["bob", "charlie", "dora", "alice"]


def test_equal_people_share_a_rank_and_who_used_nothing_comes_first() -> None:
    ranks = fair_ranks([Branch("alice", 1, 5), Branch("bob", 1, 5), Branch("charlie", 1, 0)])

    assert ranks == {"charlie": 0, "alice": 1, "bob": 1}


def test_no_share_means_last() -> None:
    assert level_factors([Branch("alice", 0, 0), Branch("bob", 2, 10)])[0] == 0


def test_usage_halves_in_a_half_life() -> None:
    assert decayed(80.0, 7200, 3600) == pytest.approx(20.0)
