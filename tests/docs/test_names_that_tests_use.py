"""What tests and tools take from the product is there: mypy does not look at them, and some run rarely."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("portal", "scheduler", "nodeagent", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
}


def names_of(tree: ast.Module) -> set[str]:
    """Return everything that a module could give, wherever in it a name is made."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def names_in(module: str) -> set[str]:
    return names_of(tree_of(module))


def missing(tree: ast.Module) -> list[str]:
    """Return what is imported from, or asked of, a module of ours that does not have it."""
    wrong: list[str] = []
    modules: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in MODULES:
                    modules[alias.asname or alias.name] = whole
                elif alias.name not in names_in(node.module):
                    wrong.append(whole)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in own:
            module = modules.get(node.value.id, "")
            is_module = f"{module}.{node.attr}" in MODULES or node.attr.startswith("__")
            if module and not is_module and node.attr not in names_in(module):
                wrong.append(f"{module}.{node.attr}")
    return wrong


@pytest.mark.deep
@pytest.mark.parametrize("folder", ["tests", "tools"])
def test_what_is_taken_from_a_module_is_in_it(folder: str) -> None:
    wrong = {
        module: found
        for module in MODULES
        if module.startswith(f"{folder}.") and (found := missing(tree_of(module)))
    }

    assert wrong == {}


def test_a_name_that_is_gone_would_be_seen() -> None:
    tree = ast.parse(
        "from scheduler.engine import plan\nfrom scheduler.engine.plan import gone\nplan.lost()\n"
    )

    assert missing(tree) == ["scheduler.engine.plan.gone", "scheduler.engine.plan.lost"]
