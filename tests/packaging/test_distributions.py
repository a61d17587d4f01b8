"""Two distributions, one tree: the agent needs what it says and nothing of the web, and both are of one release."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import nodeagent

ROOT = Path(__file__).resolve().parents[2]


def project(folder: str = ".") -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9._-]+", one)[0].lower() for one in requirements}  # type: ignore[index]


def imported() -> set[str]:
    """Top names of everything that a module of the agent imports, lazily or not."""
    found = set()
    for path in (ROOT / "nodeagent").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"nodeagent"}


def test_the_agent_requires_exactly_what_its_modules_import() -> None:
    whose = packages_distributions()

    needed = {whose[name][0].lower().replace("_", "-") for name in imported()}

    agent = project("nodeagent")
    extras = [one for extra in agent["optional-dependencies"].values() for one in extra]
    assert names(agent["dependencies"]) | names(extras) == needed


def test_the_agent_is_small() -> None:
    assert len(project("nodeagent")["dependencies"]) <= 5
    assert not names(project("nodeagent")["dependencies"]) & {"django", "celery", "scikit-learn", "numpy"}


def test_both_distributions_are_of_one_release() -> None:
    version = project()["version"]

    assert project("nodeagent")["version"] == nodeagent.__version__ == version
    assert f"berth-agent=={version}" in project()["dependencies"]


@pytest.mark.parametrize("key", ["requires-python", "license"])
def test_both_distributions_make_the_same_promise(key: str) -> None:
    assert project("nodeagent")[key] == project()[key]


def test_the_agent_carries_the_licence_of_the_tree() -> None:
    assert (ROOT / "nodeagent" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
