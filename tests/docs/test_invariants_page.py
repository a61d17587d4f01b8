"""docs/invariants.md names what is there: each invariant with a refusal, a query or a test."""

from __future__ import annotations

import re
from pathlib import Path

from portal.common.invariants import INVARIANTS
from tests.portal.test_refusals import ATTACKS

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| I(\d+) \|(.*)\|$", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE)
CELLS = {int(number): [cell.strip() for cell in rest.split("|")] for number, rest in ROWS}


def _names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_all_are_there_and_each_is_proved_somehow() -> None:
    assert len(CELLS) >= 34
    assert list(CELLS) == list(range(1, len(CELLS) + 1))
    assert [number for number, (_what, *proofs) in CELLS.items() if not any(proofs)] == []


def test_each_refusal_is_attacked_each_query_exists_and_each_test_is_there() -> None:
    attacked, checked = {guard for guard, *_rest in ATTACKS}, {one.name for one in INVARIANTS}
    missing = []
    for _what, refused, query, proof in CELLS.values():
        missing += [name for name in _names(refused) if name not in attacked]
        missing += [name for name in _names(query) if name not in checked]
        for test in _names(proof):
            file, _sep, name = test.partition("::")
            if f"def {name}(" not in (ROOT / file).read_text():
                missing.append(test)

    assert missing == []
