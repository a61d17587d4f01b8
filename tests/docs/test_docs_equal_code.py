"""What the docs list is what the code has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from portal.billing.models import PERIOD_NEXT, PeriodState
from portal.jobs.states import JOB_NEXT, JobState
from portal.leases.reasons import CODES
from portal.leases.states import LEASE_NEXT, REQUEST_NEXT, LeaseState, RequestState
from scheduler.engine.reasons import REASONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def rows(name: str) -> list[list[str]]:
    """Return the cells of every table row of a page, heads left out."""
    return cells_of((DOCS / name).read_text())


def cells_of(text: str) -> list[list[str]]:
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and not set(line) <= set("|- "):
            found.append(cells)
    return found


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_dependency_has_its_sentence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    agent = tomllib.loads((ROOT / "nodeagent" / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *agent["project"]["dependencies"]]
    for group in (
        *project["dependency-groups"].values(),
        *project["project"]["optional-dependencies"].values(),
        *agent["project"]["optional-dependencies"].values(),
    ):
        wanted += group
    wanted_names = {re.match(r"[a-zA-Z0-9_.-]+", item).group().lower() for item in wanted}

    told = {name for cells in rows("dependencies.md") for name in re.split(r",\s*", cells[0].lower())}

    assert wanted_names - told == set()
    assert told - wanted_names - {"package"} == set()


def test_states_page_is_the_state_tables() -> None:
    text = (DOCS / "states.md").read_text()
    tables = [
        ("Request", REQUEST_NEXT, RequestState),
        ("Lease", LEASE_NEXT, LeaseState),
        ("Batch job", JOB_NEXT, JobState),
        ("Billing period", PERIOD_NEXT, PeriodState),
    ]

    for title, table, states in tables:
        section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        page = {next(iter(names(c[0]))): names(c[1]) for c in cells_of(section) if names(c[0])}
        for state in states.values:
            assert page[state] == set(table.get(state, ())), state


def test_wait_reasons_page_is_the_engines_table_and_each_has_a_sentence() -> None:
    page = {next(iter(names(c[0]))): names(c[2]) for c in rows("wait-reasons.md") if names(c[0])}

    assert page == {code: set(kind.figures) for code, kind in REASONS.items()}
    assert set(REASONS) == CODES


def test_settings_page_lists_what_the_settings_read() -> None:
    source = (ROOT / "portal" / "settings.py").read_text()
    read = set(re.findall(r'(?:env\.\w+\(|read_\w+\(env,)\s*"(\w+)"', source))
    for file in (ROOT / "portal" / "embedded").glob("*.py"):
        read |= set(re.findall(r'\benv\.get\("(BERTH_\w+)"', file.read_text()))
    # A secret from a file is told in the page's first lines.
    read = {name for name in read if name.removesuffix("_FILE") == name}

    told = {name for cells in rows("settings.md") for name in names(cells[0])}

    assert read == told
