"""What the product decides with is what the replays measure."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def modules(folder: str) -> dict[str, Path]:
    """The modules below a folder of the tree, by dotted name."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The known modules that a file imports, with the packages they are in."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name in known}


def test_every_module_of_the_engine_serves_the_product() -> None:
    known = {**modules("scheduler"), **modules("portal")}
    left = [name for name in known if not name.startswith(("scheduler.engine", "scheduler.replay"))]
    reached = set(left)
    while left:
        for name in imported(known[left.pop()], known) - reached:
            reached.add(name)
            left.append(name)

    engine = {
        name
        for name, path in known.items()
        if name.startswith("scheduler.engine") and path.stem != "__init__"
    }
    unused = engine - reached

    assert not unused
