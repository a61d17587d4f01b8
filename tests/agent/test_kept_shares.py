"""Shares that somebody or something took from a ready lease: put back at the next look, and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.test_lost_card import CardNode


@pytest.fixture
def node(tmp_path: Path) -> CardNode:
    return CardNode(tmp_path)


@pytest.mark.parametrize("protocol", [2, 3])
def test_shares_of_one_user_end_after_their_card_was_reset_under_them(node, protocol):
    node.home.mps.newest = protocol
    node.start()
    node.desire(node.lease_of("mps"), node.lease_of("mps", "b"))
    node.home.host.reset(0)

    node.desire()
    node.pass_time(60)

    assert node.phases() == {"a": "gone", "b": "gone"}
    assert node.driver.mps.daemons() == []
