"""SQL takes the names of states from the enums: a state that is renamed or goes is found by the type checker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.billing.models import PeriodState
from portal.common.sql import in_sql
from portal.fleet.models import Health, Power, PowerState
from portal.leases.states import Approval, EndReason, ExtensionState, LeaseState, RequestState

ROOT = Path(__file__).parent.parent.parent
ENUMS = (
    LeaseState, RequestState, EndReason, ExtensionState, Approval, PeriodState, Power, PowerState, Health,
)  # fmt: skip
STATES = {str(value) for enum in ENUMS for value in enum.values if value}
# What follows a column that holds a state: one name, or several in brackets.
NAMED = re.compile(
    r"\b(?:\w+_)?(?:state|was|now|reason|desired|rule|health|approval)\b[^'()]{0,12}?"
    r"(?:=|<>|!=|\bIN\b)\s*\(?((?:'\w+'(?:,\s*)?)+)"
)
# These stand apart on purpose: they prove the rows without the code that made them.
PROVERS = (
    "portal/common/invariants.py",
    "portal/common/minimum_charge.py",
    "tools/drill/proofs.py",
    "tools/drill/run.py",
    "tools/drill/probe.py",
)


def sources() -> list[Path]:
    found = [path for folder in ("portal", "scheduler") for path in (ROOT / folder).rglob("*.py")]
    return [
        path
        for path in found
        if "migrations" not in path.parts and str(path.relative_to(ROOT)) not in PROVERS
    ]


def named(source: str) -> Iterator[str]:
    """Return the names that stand in quotes after a column of states in the strings of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for names in NAMED.findall(node.value):
                yield from re.findall(r"'(\w+)'", names)


@pytest.mark.parametrize(
    "source",
    [
        'fetch("SELECT 1 FROM leases_lease l WHERE l.state = \'booked\'")',
        'fetch("SELECT 1 FROM leases_lease WHERE state IN (\'active\', \'ending\') AND id = %s")',
        'SQL = f"SELECT {WHAT} FROM x" f" WHERE end_reason <> \'fault\'"',
        'where("it.power_state NOT IN (\'awake\')")',
    ],
)  # fmt: skip
def test_a_name_in_sql_is_found(source: str) -> None:
    assert STATES & set(named(source))


def test_sql_of_portal_and_scheduler_names_no_state_by_itself() -> None:
    found = {str(path.relative_to(ROOT)): STATES & set(named(path.read_text())) for path in sources()}

    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("path", PROVERS)
def test_what_proves_the_rows_by_its_own_words_names_states_that_exist(path: str) -> None:
    names = set(named((ROOT / path).read_text()))

    assert names
    assert names <= STATES


def test_a_list_of_states_is_written_as_sql_writes_it() -> None:
    assert in_sql((LeaseState.ACTIVE, LeaseState.ENDED)) == "('active', 'ended')"
