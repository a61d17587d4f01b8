"""The page about faults: all fifty rows, each with a proof that exists or the reason why there is none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from portal.common.failpoints import POINTS
from tools.drill.faults import FAULTS

ROOT = Path(__file__).parents[2]
LEAST_PROVEN = 42


def rows() -> dict[int, tuple[set[str], str]]:
    """Return by row what proves it and why something is missing."""
    found = {}
    for line in (ROOT / "docs" / "reliability.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0].isdecimal():
            found[int(cells[0])] = (set(re.findall(r"`([^`]+)`", cells[2])), cells[3])
    return found


@cache
def defined_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def exists(proof: str) -> bool:
    file, _, name = proof.partition("::")
    if not name:
        return proof in FAULTS or proof in POINTS
    return (ROOT / file).exists() and name in defined_in(file)


def test_all_fifty_rows_are_there_and_every_proof_named_exists() -> None:
    found = rows()

    assert sorted(found) == list(range(1, 51))
    assert [(row, one) for row, (proofs, _why) in found.items() for one in proofs if not exists(one)] == []


def test_what_is_not_proven_says_why_and_is_the_exception() -> None:
    found = rows()
    whole = [row for row, (proofs, missing) in found.items() if proofs and not missing]

    assert [row for row, (proofs, missing) in found.items() if not proofs and not missing] == []
    assert len(whole) >= LEAST_PROVEN


def test_every_fault_and_failpoint_stands_in_a_row() -> None:
    named = {one for proofs, _why in rows().values() for one in proofs}

    assert set(FAULTS) - named == set()
    assert {one for one in POINTS if not one.startswith("driver.")} - named == set()
