"""State tables: what may follow what. The triggers that hold them stand in migrations; a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping, Set

Table = Mapping[str, Set[str]]


class IllegalMove(Exception):
    """A step that the table does not have: always a mistake in the code, never bad input."""


def check_move(table: Table, was: str, now: str, what: str) -> None:
    """Raise ``IllegalMove`` when ``now`` may not follow ``was``."""
    if now not in table.get(was, frozenset()):
        raise IllegalMove(f"{what}: {was} -> {now}")
