"""One name, one meaning: what a class of the agent is called says which one it is."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import nodeagent

FOLDER = Path(nodeagent.__file__).parent


def public_classes() -> list[str]:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.rglob("*.py"))
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return [name for name in classes if not name.startswith("_")]


def test_no_public_class_name_of_the_agent_occurs_twice():
    twice = {name for name, times in Counter(public_classes()).items() if times > 1}

    assert twice == set()


def test_no_module_of_the_agent_is_longer_than_500_lines():
    long = {
        str(path.relative_to(FOLDER))
        for path in FOLDER.rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > 500
    }

    assert long == set()
