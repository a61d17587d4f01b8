"""Where the arrows lead in the list of what was found."""

from __future__ import annotations

from tests.frontend.test_scripts import needs_node, run


@needs_node
def test_arrows_go_round() -> None:
    steps = "[[-1, 1, 3], [-1, -1, 3], [2, 1, 3], [0, -1, 3], [0, 1, 3], [0, 1, 0]]"

    assert run("search.js", "stepped", f"{steps}.map(one => stepped(...one))") == [0, 2, 0, 2, 1, -1]
