"""The demo's story: everything it asks for can be had on its own fleet."""

from __future__ import annotations

from portal.demo.organisation import FLAVORS, FLEET
from portal.demo.present import WISHES


def test_what_is_asked_for_over_several_nodes_has_as_many_nodes() -> None:
    boards = {slug: board for slug, _name, _zh, board, *_rest in FLAVORS}
    wide = [wish for wish in WISHES if wish.nodes > 1]

    assert wide
    for wish in wide:
        able = [
            one
            for one in FLEET
            if one.board == boards[wish.flavor] and "exclusive" in one.modes and one.count >= wish.count
        ]
        assert len(able) >= wish.nodes, wish.name
